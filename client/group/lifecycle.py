"""The lifecycle of a membership on the user's loop: join, hold a share, give it up, join again.

It calls the participant, which touches the user's program, and the ``CoordinatorClient``, which speaks the protocol in the
background.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from random import Random
from typing import Any, Final, TypeVar

from client.errors import (
    CohortError,
    FencedInstanceIdError,
    IllegalGenerationError,
    MaxPollIntervalExceededError,
    RebalanceInProgressError,
    UnknownMemberIdError,
)
from client.group.config import MembershipSettings
from client.group.coordinator_client import CoordinatorClient
from client.group.participant import Participant, State
from client.group.session import Event, Generation, Progress, RejoinNeeded, Session, SessionLost
from client.log import get_logger
from client.transport.background_loop import Background
from client.transport.retry import Backoff

T = TypeVar("T")

_SHARE_IS_GONE: Final = (IllegalGenerationError, UnknownMemberIdError)
_REJOIN_AFTER: Final = (RebalanceInProgressError, *_SHARE_IS_GONE)

log = get_logger()


class MembershipLifecycle:
    """Base of ``Membership``: the task that joins, holds a share, gives it up and joins again, until it is to close."""

    progress: Progress  # both are made when it starts
    _coordinator: CoordinatorClient

    def __init__(
        self,
        settings: MembershipSettings,
        participant: Participant,
        on_news: Callable[[], None],
        background: Background,
        random: Random,
    ) -> None:
        self.settings = settings
        self.session: Session | None = None
        self._generations_joined = self._shares_lost = 0
        self._participant = participant
        self._on_news = on_news
        self._background = background
        self._random = random
        self._backoff = Backoff(random)
        self._state: State = "unjoined"
        self._changed = asyncio.Event()
        self._woken = asyncio.Event()
        self._resume = asyncio.Event()
        self._rejoin_reason: str | None = None
        self._leave_reason: str | None = None
        self._events: list[Event] = []
        self._error: BaseException | None = None
        self._failed = False
        self._fenced: FencedInstanceIdError | None = None
        self._closing = False
        self._in_participant = False
        self._rejoining = False

    def _set_state(self, state: State) -> None:
        self._state = state
        changed, self._changed = self._changed, asyncio.Event()
        changed.set()
        self._on_news()

    async def _run(self) -> None:
        reason = ""
        attempt = 0
        # A member that closes with a share whose generation it does not know yet has to learn that first: it may commit what
        # it has done in no other.
        while not self._closing or self._rejoining:
            self._set_state("rebalancing" if self.session is not None else "joining")
            if self.session is None or self.session.joiner != "background":
                self._rejoin_reason = None  # what it was about is in the protocols of this join
            try:
                joined = await self._join(reason)
                attempt = 0
                if isinstance(joined, Generation):
                    reason = await self._hold(joined)
                elif joined is not None:
                    reason = await self._handle_loss(joined)
                elif self._leave_reason is not None:
                    reason = await self._leave_until_resumed(self._leave_reason)
            except asyncio.CancelledError:
                raise
            except Exception as error:
                rejoin = await self._handle_error(error, attempt)
                if rejoin is None:
                    return
                reason = rejoin
                attempt += 1

    async def _handle_error(self, error: Exception, attempt: int) -> str | None:
        """Waits until the next join makes sense and returns its reason; None when there is to be none."""
        if self._closing and not self._rejoining:
            return None
        if isinstance(error, FencedInstanceIdError):
            await self._end_fenced(error)
            return None
        if isinstance(error, _SHARE_IS_GONE):
            self.session = None
            await self._lose(str(error))
        if not isinstance(error, _REJOIN_AFTER) and not (isinstance(error, CohortError) and error.retriable):
            await self._fail(error)
            return f"coming back after {type(error).__name__}"
        log.info("rejoining", group=self.settings.group_id, error=str(error))
        if attempt or not isinstance(error, RebalanceInProgressError):  # then the others wait for this one
            await asyncio.sleep(self._backoff.delay_s(attempt))
        return f"joining again: {error}"

    async def _join(self, reason: str) -> Generation | SessionLost | None:
        """Joins; a share that is held on to meanwhile may be lost, which ends the attempt.

        So does a call to leave while nothing is held (then None): the group may wait long for another member.
        """
        keeps = self._participant.cooperative
        session = self.session
        held = session if keeps and session is not None and session.ended is session.latest.ended is None else None
        join = self._coordinator.join(self._participant.protocols(), reason, keeps=keeps, held=held)
        joining = self._background.submit(join)
        if held is not None:
            self._rejoining = True
        try:
            while not joining.done():
                self._woken.clear()
                lost = self._lost() if held is not None else None
                if lost is not None and not self._closing:
                    return lost
                if held is None and self._leave_reason is not None and not self._closing:
                    return None
                woken = asyncio.create_task(self._woken.wait())
                either: set[asyncio.Future[Any]] = {joining, woken}
                try:
                    await asyncio.wait(either, return_when=asyncio.FIRST_COMPLETED)
                finally:
                    woken.cancel()
            lost = self._lost() if held is not None else None
            if lost is not None and (lost.overdue_ms is not None or lost.fenced is not None):
                joining.exception()  # whatever came of it: the member is out
                return lost
            return joining.result()
        finally:
            joining.cancel()

    async def _hold(self, generation: Generation) -> str:
        """Lives in one generation; returns the reason to join the next."""
        self.session = generation.session
        self._events = [event for event in self._events if event.session is generation.session]
        self._woken.set()
        self._share_is_known()
        await self._take_share(generation)
        while not self._closing:
            await self._woken.wait()
            self._woken.clear()
            lost = self._lost()
            if lost is not None:
                return await self._handle_loss(lost)
            if self._leave_reason is not None:
                if self._is_joined_for():  # it is left as a member of the generation that the background has joined
                    return self._leave_reason
                return await self._leave_until_resumed(self._leave_reason)
            asked = self._rejoin_reason
            reason = self._take_rejoin_reason()
            if reason is not None:
                self._set_state("rebalancing")
                if self._is_joined_for():
                    self._rejoin_reason = asked  # the background did not know of it
                    return reason
                await self._call_participant(self._participant.prepare(reason))
                if self._lost() is None:
                    return reason
                self._woken.set()  # lost while giving up: the loop comes back to it
        return "closing"

    def _is_joined_for(self) -> bool:
        """Whether the background joins again from here, the program having been blocked; if not, it does not any more."""
        return self.session is not None and self.session.ended is None and not self.session.claim_rejoin("program")

    async def _take_share(self, generation: Generation) -> None:
        if self._closing:  # stop() gives up the share
            return
        again = await self._call_participant(self._participant.accept(generation))
        generation.session.settled = True
        if again is not None:
            self._rejoin_reason = self._rejoin_reason or again
        elif not self._closing:
            self._generations_joined += 1
            self._set_state("stable")

    def _lost(self) -> SessionLost | None:
        """The loss of the share, if there is news of one; the news that matters most to the program first."""
        ours = []
        session = self.session
        while session is not None:
            ours.append(session)
            session = session.successor
        losses = [event for event in self._events if isinstance(event, SessionLost) and event.session in ours]
        losses.sort(key=lambda loss: (loss.fenced is None, loss.overdue_ms is None))
        return losses[0] if losses else None

    def _take_rejoin_reason(self) -> str | None:
        called = (event for event in self._events if isinstance(event, RejoinNeeded) and event.session is self.session)
        first = next(called, None)
        reason = self._rejoin_reason or (first.reason if first is not None else None)
        self._rejoin_reason = None
        self._events.clear()
        return reason

    async def _handle_loss(self, lost: SessionLost) -> str:
        if lost.fenced is not None:
            raise lost.fenced
        self._shares_lost += 1
        log.warning("membership_lost", group=self.settings.group_id, reason=lost.reason)
        if self.session is not None and self.session.ended is None:  # a place in the next generation was lost
            self.session.ended = lost.reason
        self._set_state("fenced")
        await self._lose(lost.reason)
        if lost.overdue_ms is not None:
            await self._fail(
                MaxPollIntervalExceededError(
                    f"{lost.overdue_ms} ms passed since the last poll, more than max_poll_interval_ms "
                    f"({self.settings.max_poll_interval_ms} ms), so this member left group {self.settings.group_id!r} and "
                    "its partitions went to others. The next call joins again. Process less between two polls "
                    "(max_poll_records), or raise max_poll_interval_ms"
                )
            )
        return f"joining again: {lost.reason}"

    async def _leave_until_resumed(self, reason: str) -> str:
        self._leave_reason = None
        self._resume.clear()
        self._set_state("rebalancing")
        await self._call_participant(self._participant.revoke(reason))
        if self._closing:  # stop() does the rest, and does not wait for what ``_resume`` waits for
            return reason
        await self._background.submit(self._coordinator.leave(reason))
        self.session = None
        self._set_state("unjoined")
        await self._resume.wait()
        return "subscribed again"

    async def _fail(self, error: BaseException) -> None:
        """Keeps ``error`` for the user's next call and waits until the call after it, outside the group."""
        log.error("membership_failed", group=self.settings.group_id, error=str(error))
        self._resume.clear()
        await self._lose(str(error))
        if self._closing:
            return
        await self._background.submit(self._coordinator.leave(f"{type(error).__name__}: {error}"))
        self._error, self._failed = error, True
        self._set_state("fenced")
        await self._resume.wait()
        self._failed = False
        self.session = None

    async def _end_fenced(self, error: FencedInstanceIdError) -> None:
        """Another process has this member's instance id: joining again would fence that one, which would join again."""
        log.error("member_fenced", group=self.settings.group_id, error=str(error))
        if self.session is not None and self.session.ended is None:
            self.session.ended = str(error)
        self._fenced = error
        self._set_state("fenced")
        await self._lose(str(error))
        await self._background.submit(self._coordinator.leave(str(error)))

    def _share_is_known(self) -> None:
        """It is known which member holds the share; a commit may wait for that, and the participant for the commit."""
        self._rejoining = False
        self._set_state(self._state)

    async def _lose(self, reason: str) -> None:
        self._share_is_known()
        await self._call_participant(self._participant.lose(reason))

    async def _call_participant(self, call: Coroutine[Any, Any, T]) -> T:
        self._in_participant = True
        try:
            return await call
        finally:
            self._in_participant = False
