"""A membership as the program's calls see it: start, rejoin, leave, errors, stop.

::

    unjoined --> joining --> stable <--> rebalancing
                    ^           |
                    +-- fenced <+          any --> closed

The protocol runs in the background (``CoordinatorClient``); ``MembershipLifecycle`` takes the steps that touch the user's
program: it gives up shares and takes them.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from random import Random
from typing import Final

from client.errors import (
    ClosedError,
    CohortError,
    FencedInstanceIdError,
    IllegalStateError,
    ProtocolResponseError,
    RequestTimedOutError,
)
from client.group.config import MembershipSettings
from client.group.coordinator_client import Assigner, CoordinatorClient
from client.group.lifecycle import MembershipLifecycle
from client.group.participant import Participant, State
from client.group.session import Event, Progress, Session, SessionLost
from client.log import get_logger
from client.transport.background_loop import SHARED_THREAD, Background
from client.transport.deadline import Deadline
from client.types.metrics import MemberMetrics

DEFAULT_STOP_S: Final = 30.0
_LEAVE_S: Final = 4.0
_RECHECK_S: Final = 0.1

log = get_logger()


class StopTurn:
    """One call of ``stop`` at a time: another one waits for the call that is under way."""

    def __init__(self) -> None:
        self._lock = asyncio.Lock()
        self._stopping: asyncio.Task[None] | None = None

    def check_outside(self, callback: str) -> None:
        """Raises ``IllegalStateError`` within ``callback`` when ``stop`` has called that: it would wait for itself."""
        if self._stopping is asyncio.current_task():
            raise IllegalStateError(f"stop() was called from {callback}, which stop() itself has called")

    @asynccontextmanager
    async def take(self, deadline: Deadline) -> AsyncIterator[bool]:
        """Gives whether it is the caller's turn: it is not when the call under way lasts beyond ``deadline``."""
        try:
            async with asyncio.timeout(max(0.0, deadline.remaining_s())):
                await self._lock.acquire()
        except TimeoutError:
            yield False
            return
        self._stopping = asyncio.current_task()
        try:
            yield True
        finally:
            self._stopping = None
            self._lock.release()


class Membership(MembershipLifecycle):
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
        super().__init__(settings, participant, on_news, background or SHARED_THREAD, random or Random())
        self._assigner = assigner
        self._task: asyncio.Task[None] | None = None
        self._leaving: asyncio.Future[None] | None = None
        self._ended: BaseException | None = None

    @property
    def state(self) -> State:
        """Where in its life this member is; by the clock as well: a program that was suspended need not be told first."""
        session = self.session
        if session is None or self._state not in ("stable", "rebalancing"):
            return self._state
        # A pending join keeps the place by itself. Its member has no heartbeats and holds nothing.
        is_joining = self._state == "rebalancing" and not (self._in_participant or self._rejoining)
        over = session.ended is not None if is_joining else session.is_over(self._background.time())
        return "fenced" if over else self._state

    def metrics(self) -> MemberMetrics:
        """Where it is, and how often it got there."""
        generation = -1 if self.session is None else self.session.generation
        return MemberMetrics(self.state, generation, self._generations_joined, self._shares_lost)

    def holds_share(self) -> bool:
        """Whether what this member has is still its own for certain; also before the first join, when it has nothing."""
        return self.session is None or self.session.holds(self._background.time())

    async def certain(self) -> bool:
        """Whether this member holds what it was given, once that is known. For its participant, in ``accept``.

        A program that was suspended may find the answer to its join from before, although its session is over since: the
        next heartbeat tells, or the end of its time. Not known, and so False, it is to a member that leaves then, and to one
        that was called to join again and is late for that.
        """
        while (known := self._known_at(self._background.time())) is None:
            if self._closing or self._leave_reason is not None:
                return False
            self._woken.clear()
            try:
                async with asyncio.timeout(_RECHECK_S):
                    await self._woken.wait()
            except TimeoutError:
                continue  # a session may be renewed without news for the program
            finally:
                self._woken.set()  # for what has come meanwhile
        return known

    def _known_at(self, now_s: float) -> bool | None:
        """Whether this member holds its place at this moment; None when the next heartbeat has to tell."""
        session = self.session
        if session is None or not session.is_over(now_s):
            return True
        latest = session.latest
        ended = session.ended is not None or latest.ended is not None
        late = session.called and latest.rejoin_by_s <= now_s < latest.expires_s
        return False if ended or late else None

    @property
    def rejoining(self) -> bool:
        """Whether it holds its share at this moment without knowing the generation it holds it in."""
        return self._rejoining or (self.session is not None and self.session.joiner == "background")

    def start(self) -> None:
        """Begins to join; needs a running loop."""
        loop = asyncio.get_running_loop()

        def post(event: Event) -> None:
            try:
                loop.call_soon_threadsafe(self._receive, event)
            except RuntimeError:
                # The loop was closed: there is no program left to tell, and the next heartbeat notices.
                log.warning("event_loop_closed_without_stop", group=self.settings.group_id, reason=event.reason)

        limit_ms = self.settings.max_poll_interval_ms
        self.progress = Progress(self._background.time, None if limit_ms is None else limit_ms / 1000)
        self._coordinator = CoordinatorClient(
            self.settings,
            self._assigner,
            self.progress,
            post,
            loop.is_closed,
            self._participant.standing_protocols,
            Random(self._random.getrandbits(64)),
        )
        self._set_state("joining")
        self._task = asyncio.create_task(self._run(), name=f"cohort-membership-{self.settings.group_id}")
        self._task.add_done_callback(self._on_task_ended)

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

        What has ended the membership for good is raised at every call: a fault, or ``FencedInstanceIdError``.
        """
        if self._fenced is not None:
            raise FencedInstanceIdError(
                f"another process has taken the group_instance_id {self.settings.group_instance_id!r} of this member of "
                f"group {self.settings.group_id!r}, and its partitions: {self._fenced}. Give every process a "
                "group_instance_id of its own; this member does not come back, stop it"
            )
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

        Raises ``RequestTimedOutError`` at the deadline, the error that keeps the member out of its group, and at once when
        there is none to come: ``ClosedError`` after ``stop``, ``IllegalStateError`` after ``leave``.
        """
        before = self.session
        while self.session is before or self._state != "stable":
            self.check()
            self._check_stays()
            try:
                async with asyncio.timeout(deadline.remaining_s()):
                    await self._changed.wait()
            except TimeoutError as error:
                raise RequestTimedOutError(
                    f"group {self.settings.group_id!r} did not settle in a new generation within "
                    f"{deadline.timeout_ms:.0f} ms; this member is {self.state}"
                ) from error

    def _check_stays(self) -> None:
        group = f"group {self.settings.group_id!r}"
        if self._closing:
            raise ClosedError(f"this member of {group} was stopped before its next generation")
        if self._state == "unjoined" and not self._resume.is_set():
            raise IllegalStateError(
                f"this member has left {group} by unsubscribe(): subscribe() before it can rebalance"
            )

    async def rejoined(self, deadline: Deadline) -> None:
        """Returns once it is not ``rejoining``. Raises ``RequestTimedOutError`` at the deadline."""
        while self.rejoining:
            try:
                async with asyncio.timeout(deadline.remaining_s()):
                    await self._changed.wait()
            except TimeoutError as error:
                raise RequestTimedOutError(
                    f"group {self.settings.group_id!r} was still rebalancing after {deadline.timeout_ms:.0f} ms"
                ) from error

    def report_refusal(self, session: Session, error: ProtocolResponseError) -> None:
        """Another request learned that the coordinator does not know ``session`` any more."""
        if session.ended is None:
            session.ended = str(error)
        fenced = error if isinstance(error, FencedInstanceIdError) else None
        self._receive(SessionLost(session, str(error), fenced=fenced))

    def check_outside(self) -> None:
        """Raises ``IllegalStateError`` when called from within the participant: ``stop`` would wait for itself."""
        if self._task is not None and self._task is asyncio.current_task():
            raise IllegalStateError("stop() was called from a rebalance callback, which it would have to wait for")

    async def stop(self, deadline: Deadline, reason: str = "closing") -> None:
        """Gives up the share, leaves the group and ends, all within ``deadline``.

        ``check_outside`` says whether that is possible. A call that is cancelled still leaves the group; the next one
        finishes what it has left undone.
        """
        task = self._task
        if task is None:
            self._set_state("closed")
            return
        self._closing = True
        self._woken.set()  # ``certain`` may wait
        try:
            # What is held while the next generation forms is given up below; only in that generation it may be committed.
            if not task.done() and self._is_joined_for():
                self._rejoining = True
                self._woken.set()
            if not task.done() and not self._rejoining:
                if not self._in_participant:
                    task.cancel()
                await asyncio.wait([task], timeout=deadline.remaining_s() / 2)
                task.cancel()
                await asyncio.wait([task], timeout=max(deadline.remaining_s(), 0.5))
            async with asyncio.timeout(deadline.remaining_s()):
                if self._leaving is None and self.session is not None and self.session.ended is None:
                    await self._participant.revoke(reason)
                else:
                    await self._participant.lose(reason)
        except TimeoutError:
            log.warning("stop_deadline_passed", undone="giving up the share", group=self.settings.group_id)
        finally:
            # Also when this call is cancelled: a member whose task has ended must not be kept alive by heartbeats.
            task.cancel()
            self._set_state("closed")
            if self._leaving is None:
                self._leaving = self._background.submit(self._leave_group(reason))
        # Runs on in the background when the time is over, or when this task is cancelled meanwhile.
        await asyncio.wait([self._leaving], timeout=min(_LEAVE_S, max(deadline.remaining_s(), 0.5)))

    async def _leave_group(self, reason: str) -> None:
        try:
            await self._coordinator.leave(reason)
        finally:
            await self._coordinator.close()

    def _receive(self, event: Event) -> None:
        # News of a session may overtake the join that brings it, so all are kept until the lifecycle sorts them out; a
        # session sends a handful at most.
        self._events.append(event)
        self._woken.set()
        self._on_news()

    def _on_task_ended(self, task: asyncio.Task[None]) -> None:
        """An end of the task that ``stop`` did not ask for must be seen by the program and its operators."""
        ended = asyncio.CancelledError("its task was cancelled") if task.cancelled() else task.exception()
        if self._closing or self._fenced is not None:
            return
        self._ended = ended
        self._set_state("fenced")
        if task.cancelling():  # as at the end of asyncio.run: heartbeats notice when the loop is closed
            log.warning("membership_cancelled_without_stop", group=self.settings.group_id)
            return
        log.error("membership_ended", group=self.settings.group_id, error=repr(ended), exc_info=ended)
        self._leaving = self._background.submit(self._leave_group("its membership ended by an error"))
