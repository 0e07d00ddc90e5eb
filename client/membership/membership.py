"""A member's life, driven on the user's loop: join, hold a share, give it up, join again, leave.

::

    unjoined --> joining --> stable <--> rebalancing
                    ^           |
                    +-- fenced <+          any --> closed

The protocol itself runs in the background (``GroupSession``); here are the steps that touch the user's program: giving up
a share, taking one, and the errors the user must see.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Sequence
from random import Random
from typing import Any, Final, Literal, Protocol

from client.background import SHARED_THREAD, Background
from client.deadline import Deadline
from client.errors import (
    CohortError,
    IllegalGenerationError,
    IllegalStateError,
    MaxPollIntervalExceededError,
    RebalanceInProgressError,
    RequestTimedOutError,
    UnknownMemberIdError,
)
from client.log import get_logger
from client.membership.session import Assigner, GroupSession
from client.membership.settings import MembershipSettings
from client.membership.types import Event, Generation, Progress, Session, SessionLost
from client.retry import Backoff

State = Literal["unjoined", "joining", "stable", "rebalancing", "fenced", "closed"]

DEFAULT_STOP_S: Final = 30.0
_GOODBYE_S: Final = 4.0
_REJOIN_AFTER: Final = (RebalanceInProgressError, IllegalGenerationError, UnknownMemberIdError)

log = get_logger()


class Participant(Protocol):
    """What holds a share: told on the user's loop, one call at a time. Its own errors are its own to keep."""

    def protocols(self) -> Sequence[tuple[str, bytes]]:
        """Names and metadata to join with, in order of preference; asked before each join."""
        ...

    async def revoke(self, reason: str) -> None:
        """Gives up the share while it is still this member's."""
        ...

    async def lose(self, reason: str) -> None:
        """The share is gone already. Nothing to do when none is held."""
        ...

    async def accept(self, generation: Generation) -> None:
        """Takes the share of a new generation."""
        ...


class Membership:
    """Keeps a participant in its group until ``stop``, healing what can be healed.

    ``on_news`` is called when the state changed or an error waits to be raised by ``check``.
    """

    def __init__(
        self,
        settings: MembershipSettings,
        participant: Participant,
        assigner: Assigner,
        *,
        on_news: Callable[[], None],
        background: Background | None = None,
        random: Random | None = None,
    ) -> None:
        self.settings = settings
        self.session: Session | None = None
        self.progress: Progress
        self._participant = participant
        self._assigner = assigner
        self._on_news = on_news
        self._background = background or SHARED_THREAD
        self._random = random or Random()
        self._backoff = Backoff(self._random)
        self._state: State = "unjoined"
        self._wire: GroupSession
        self._drive_task: asyncio.Task[None] | None = None
        self._farewell: asyncio.Future[None] | None = None
        self._ended: BaseException | None = None
        self._woken = asyncio.Event()
        self._resume = asyncio.Event()
        self._rejoin_reason: str | None = None
        self._leave_reason: str | None = None
        self._events: list[Event] = []
        self._changed = asyncio.Event()
        self._error: BaseException | None = None
        self._failed = False
        self._closing = False
        self._in_hook = False

    @property
    def state(self) -> State:
        """Where in its life this member is."""
        session = self.session
        if self._state in ("stable", "rebalancing") and session is not None and session.ended is not None:
            return "fenced"
        return self._state

    def holds_share(self) -> bool:
        """Whether what this member has is still its own for certain; also before the first join, when it has nothing."""
        return self.session is None or self.session.holds(self._background.time())

    def start(self) -> None:
        """Begins to join; needs a running loop."""
        loop = asyncio.get_running_loop()

        def post(event: Event) -> None:
            try:
                loop.call_soon_threadsafe(self._receive, event)
            except RuntimeError:
                # The loop was closed: nobody is left to tell, and the next heartbeat notices.
                log.warning("a member outlived its event loop", group=self.settings.group_id, reason=event.reason)

        self.progress = Progress(self._background.time)
        self._wire = GroupSession(
            self.settings, self._assigner, self.progress, post, loop.is_closed, Random(self._random.getrandbits(64))
        )
        self._set_state("joining")
        self._drive_task = asyncio.create_task(self._drive(), name=f"cohort-membership-{self.settings.group_id}")
        self._drive_task.add_done_callback(self._drive_ended)

    def rejoin(self, reason: str) -> None:
        """Asks for a new generation, because what this member says to the group has changed."""
        self._rejoin_reason = reason
        self._woken.set()

    def leave(self, reason: str) -> None:
        """Gives up the share and leaves the group until ``come_back``."""
        self._leave_reason = reason
        self._woken.set()

    def come_back(self) -> None:
        """Joins again after ``leave`` or after an error that the user has seen."""
        self._leave_reason = None
        self.progress.restarts = True
        self._resume.set()

    def check(self) -> None:
        """Raises what went wrong, once; the call after that joins the group again.

        What has ended the membership for good is raised at every call.
        """
        if self._ended is not None:
            raise CohortError(
                f"the membership of group {self.settings.group_id!r} has ended by {self._ended!r}: stop this client and "
                "make a new one"
            ) from self._ended
        if self._error is not None:
            error, self._error = self._error, None
            raise error
        if self._failed:
            self._failed = False
            self.progress.restarts = True
            self._resume.set()

    async def next_generation(self, deadline: Deadline) -> None:
        """Returns once a generation later than the present one is stable.

        Raises ``RequestTimedOutError`` at the deadline, and the error that keeps the member out of its group.
        """
        before = self.session
        while self.session is before or self._state != "stable":
            self.check()
            try:
                async with asyncio.timeout(deadline.remaining_s()):
                    await self._changed.wait()
            except TimeoutError as error:
                raise RequestTimedOutError(
                    f"group {self.settings.group_id!r} did not settle in a new generation within "
                    f"{deadline.timeout_ms:.0f} ms; this member is {self.state}"
                ) from error

    def report_refusal(self, session: Session, reason: str) -> None:
        """Another request learned that the coordinator does not know ``session`` any more."""
        if session.ended is None:
            session.ended = reason
        self._receive(SessionLost(session, reason))

    def check_outside(self) -> None:
        """Raises ``IllegalStateError`` when called from within the participant: ``stop`` would wait for itself."""
        if self._drive_task is not None and self._drive_task is asyncio.current_task():
            raise IllegalStateError("stop() was called from a rebalance callback, which it would have to wait for")

    async def stop(self, deadline: Deadline, reason: str = "closing") -> None:
        """Gives up the share, leaves the group and ends, all within ``deadline``.

        ``check_outside`` says whether that is possible. A call that is cancelled still leaves the group; the next one
        finishes what it has left undone.
        """
        task = self._drive_task
        if task is None:
            self._set_state("closed")
            return
        self._closing = True
        try:
            if not task.done():
                if not self._in_hook:
                    task.cancel()
                await asyncio.wait([task], timeout=deadline.remaining_s() / 2)
                task.cancel()
                await asyncio.wait([task], timeout=max(deadline.remaining_s(), 0.5))
            async with asyncio.timeout(deadline.remaining_s()):
                if self._farewell is None and self.session is not None and self.session.ended is None:
                    await self._participant.revoke(reason)
                else:
                    await self._participant.lose(reason)
        except TimeoutError:
            log.warning("no time was left to give up the share in order", group=self.settings.group_id)
        finally:
            # Also when this call is cancelled: a member that is not driven any more must not be kept alive by heartbeats.
            task.cancel()
            self._set_state("closed")
            if self._farewell is None:
                self._farewell = self._background.submit(self._say_goodbye(reason))
        # Runs on in the background when the time is over, or when this task is cancelled meanwhile.
        await asyncio.wait([self._farewell], timeout=min(_GOODBYE_S, max(deadline.remaining_s(), 0.5)))

    async def _say_goodbye(self, reason: str) -> None:
        try:
            await self._wire.leave(reason)
        finally:
            await self._wire.close()

    def _receive(self, event: Event) -> None:
        # News of a session may overtake the join that brings it, so all are kept until the drive sorts them out; a
        # session sends a handful at most.
        self._events.append(event)
        self._woken.set()
        self._on_news()

    def _set_state(self, state: State) -> None:
        self._state = state
        changed, self._changed = self._changed, asyncio.Event()
        changed.set()
        self._on_news()

    def _drive_ended(self, task: asyncio.Task[None]) -> None:
        """No one else looks at the task: an end that nobody asked for must be seen by the program and its operators."""
        ended = asyncio.CancelledError("its task was cancelled") if task.cancelled() else task.exception()
        if self._closing:
            return
        self._ended = ended
        self._set_state("fenced")
        if task.cancelling():  # as at the end of asyncio.run: heartbeats notice when the loop is closed
            log.warning("membership was cancelled without stop()", group=self.settings.group_id)
            return
        log.error("membership ended", group=self.settings.group_id, error=repr(ended), exc_info=ended)
        self._farewell = self._background.submit(self._say_goodbye("its membership ended by an error"))

    async def _drive(self) -> None:
        reason = ""
        attempt = 0
        while not self._closing:
            self._set_state("rebalancing" if self.session is not None else "joining")
            self._rejoin_reason = None  # what it was about is in the protocols of this join
            try:
                generation = await self._background.submit(self._wire.join(self._participant.protocols(), reason))
                attempt = 0
                reason = await self._hold(generation)
            except asyncio.CancelledError:
                raise
            except Exception as error:
                if isinstance(error, UnknownMemberIdError):
                    self.session = None
                    await self._hook(self._participant.lose(str(error)))
                if isinstance(error, _REJOIN_AFTER) or (isinstance(error, CohortError) and error.retriable):
                    reason = f"joining again after {type(error).__name__}"
                    log.info("joining the group again", group=self.settings.group_id, error=str(error))
                    await asyncio.sleep(self._backoff.delay_s(attempt))
                    attempt += 1
                else:
                    await self._fail(error)
                    reason = f"coming back after {type(error).__name__}"

    async def _hold(self, generation: Generation) -> str:
        """Lives in one generation; returns the reason to join the next."""
        self.session = generation.session
        self._events = [event for event in self._events if event.session is generation.session]
        self._woken.set()
        await self._hook(self._participant.accept(generation))
        if not self._closing:
            self._set_state("stable")
        while not self._closing:
            await self._woken.wait()
            self._woken.clear()
            lost = self._lost()
            if lost is not None:
                return await self._outlive(lost)
            if self._leave_reason is not None:
                return await self._pause(self._leave_reason)
            reason = self._take_rejoin_reason()
            if reason is not None:
                self._set_state("rebalancing")
                await self._hook(self._participant.revoke(reason))
                if self._lost() is None:
                    return reason
                self._woken.set()  # lost while giving up: the loop comes back to it
        return "closing"

    def _lost(self) -> SessionLost | None:
        losses = [event for event in self._events if isinstance(event, SessionLost) and event.session is self.session]
        return next((loss for loss in losses if loss.overdue_ms is not None), losses[0] if losses else None)

    def _take_rejoin_reason(self) -> str | None:
        events = [event.reason for event in self._events if event.session is self.session]
        reason = self._rejoin_reason or (events[0] if events else None)
        self._rejoin_reason = None
        self._events.clear()
        return reason

    async def _outlive(self, lost: SessionLost) -> str:
        log.warning("membership lost", group=self.settings.group_id, reason=lost.reason)
        self._set_state("fenced")
        await self._hook(self._participant.lose(lost.reason))
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

    async def _pause(self, reason: str) -> str:
        self._leave_reason = None
        self._resume.clear()
        self._set_state("rebalancing")
        await self._hook(self._participant.revoke(reason))
        if self._closing:  # stop() does the rest, and does not wait for what ``_resume`` waits for
            return reason
        await self._background.submit(self._wire.leave(reason))
        self.session = None
        self._set_state("unjoined")
        await self._resume.wait()
        return "subscribed again"

    async def _fail(self, error: BaseException) -> None:
        """Keeps ``error`` for the user's next call and waits until the call after it, outside the group."""
        log.error("membership failed", group=self.settings.group_id, error=str(error))
        self._resume.clear()
        await self._hook(self._participant.lose(str(error)))
        if self._closing:
            return
        await self._background.submit(self._wire.leave(f"{type(error).__name__}: {error}"))
        self._error, self._failed = error, True
        self._set_state("fenced")
        await self._resume.wait()
        self._failed = False
        self.session = None

    async def _hook(self, call: Coroutine[Any, Any, None]) -> None:
        self._in_hook = True
        try:
            await call
        finally:
            self._in_hook = False
