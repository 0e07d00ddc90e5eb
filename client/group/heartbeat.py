"""Heartbeats of one member, on the background loop, and the watch over the program's progress."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Final

from client.errors import CohortError, FencedInstanceIdError, ProtocolResponseError, error_for
from client.group.config import MembershipSettings
from client.group.session import Event, Progress, Reassured, RejoinNeeded, Session, SessionLost
from client.log import get_logger
from client.transport.cluster import Cluster
from client.transport.deadline import Deadline
from protocol.errors import RETRIABLE, ErrorCode
from protocol.messages.groups import HeartbeatRequest, HeartbeatResponse

_RETRY_S: Final = 0.2

log = get_logger()


class Heartbeats:
    """Keeps a session alive by long polls until ``end``; tells ``post`` when the group needs the member or dropped it.

    ``leave`` takes the member out of the group; ``abandon`` does that and ends all, once ``owner_gone`` says that the loop
    of the program was closed without ``stop``.
    """

    def __init__(
        self,
        settings: MembershipSettings,
        progress: Progress,
        post: Callable[[Event], None],
        leave: Callable[[str], Awaitable[None]],
        owner_gone: Callable[[], bool],
        abandon: Callable[[], Awaitable[None]],
    ) -> None:
        self._settings = settings
        self._progress = progress
        self._post = post
        self._leave = leave
        self._owner_gone = owner_gone
        self._abandon = abandon
        self._tasks: list[asyncio.Task[None]] = []

    def begin(self, cluster: Cluster, session: Session) -> None:
        """Starts for ``session``; nothing is said of an earlier one any more."""
        self.end()
        if self._progress.restarts:  # no other rebalance is progress of the program
            self._progress.touch()
            self._progress.restarts = False
        name = f"cohort-heartbeat-{session.member_id}"
        self._tasks = [asyncio.create_task(self._beat(cluster, session), name=name)]
        if self._settings.max_poll_interval_ms is not None:
            watch = self._watch_progress(session, self._settings.max_poll_interval_ms / 1000)
            self._tasks.append(asyncio.create_task(watch, name=f"cohort-progress-{session.member_id}"))

    def end(self) -> None:
        """Stops at once; nothing is posted any more."""
        tasks, self._tasks = self._tasks, []
        for task in tasks:
            if task is not asyncio.current_task():
                task.cancel()

    async def _beat(self, cluster: Cluster, session: Session) -> None:
        loop = asyncio.get_running_loop()
        session_s = self._settings.session_timeout_ms / 1000
        interval_s = self._settings.heartbeat_interval_ms / 1000
        # A member has to learn at least three times in a rebalance timeout that the group does not wait for it, and a
        # coordinator holds a heartbeat for a third of the session at most.
        third_ms = min(self._settings.rebalance_timeout_ms, self._settings.session_timeout_ms) // 3
        wait_ms = min(self._settings.heartbeat_interval_ms, max(1, third_ms))
        renewed_s = loop.time()
        rebalancing = False
        while session.ended is None:
            if self._owner_gone():
                await self._abandon()
                return
            sent_s = loop.time()
            left_s = renewed_s + session_s - sent_s
            if left_s <= 0:
                self._lost(session, f"no heartbeat was answered for {(sent_s - renewed_s) * 1000:.0f} ms")
                return
            try:
                async with asyncio.timeout(left_s):  # nothing in here may outlast the session, connecting neither
                    asked_ms = 0 if rebalancing else wait_ms
                    response = await self._ask(cluster, session, asked_ms, Deadline(left_s * 1000))
            except TimeoutError:
                continue
            except CohortError as error:
                # It cannot succeed, or there was no time for another attempt; the check above ends it when time is over.
                log.warning("heartbeat_failed", group=self._settings.group_id, error=str(error))
                await asyncio.sleep(min(_RETRY_S, max(0.0, renewed_s + session_s - loop.time())))
                continue
            code = response.error_code
            if code == ErrorCode.NONE:
                renewed_s, rebalancing = sent_s, False
                late = loop.time() >= min(session.expires_s, session.rejoin_by_s)
                session.confirmed(sent_s, self._settings)
                if late:  # a look at the share meanwhile has found none
                    self._post(Reassured(session, "the coordinator knows this member"))
                # A daemon that answers at once although asked to wait (it is loading) shall not be asked in a spin.
                await asyncio.sleep(max(0.0, wait_ms / 1000 * 0.9 - (loop.time() - sent_s)))
            elif code == ErrorCode.REBALANCE_IN_PROGRESS:
                renewed_s = sent_s  # it renews the session too, and would be answered at once again
                session.renewed(sent_s, self._settings)
                if not rebalancing:
                    rebalancing = session.called = True
                    self._post(RejoinNeeded(session, response.message or "the group is rebalancing"))
                await asyncio.sleep(interval_s)
            elif code == ErrorCode.ILLEGAL_GENERATION and session.rejoining:
                # The answer to this member's join is on its way. Nothing is renewed: should it not come, time runs out.
                await asyncio.sleep(min(interval_s, _RETRY_S))
            elif code in RETRIABLE:
                await asyncio.sleep(min(_RETRY_S, max(0.0, renewed_s + session_s - loop.time())))
            else:
                self._refused(session, error_for(code, response.message))
                return

    async def _ask(self, cluster: Cluster, session: Session, wait_ms: int, deadline: Deadline) -> HeartbeatResponse:
        request = HeartbeatRequest(
            self._settings.group_id, session.generation, session.member_id, self._settings.group_instance_id, wait_ms
        )
        return await cluster.call_coordinator(
            self._settings.group_id, request, HeartbeatResponse, deadline=deadline, wait_ms=wait_ms
        )

    def _refused(self, session: Session, error: ProtocolResponseError) -> None:
        if isinstance(error, FencedInstanceIdError) and session.ended is None:
            session.ended = str(error)
            self._post(SessionLost(session, str(error), fenced=error))
        else:
            self._lost(session, f"the coordinator says {error}")

    def _lost(self, session: Session, reason: str) -> None:
        if session.ended is None:
            session.ended = reason
            self._post(SessionLost(session, reason))

    async def _watch_progress(self, session: Session, limit_s: float) -> None:
        loop = asyncio.get_running_loop()
        while True:
            idle_s = self._progress.idle_s(loop.time())
            if idle_s >= limit_s:
                break
            await asyncio.sleep(limit_s - idle_s + 0.001)
        if session.ended is not None:
            return
        reason = (
            f"the program made no progress for {idle_s * 1000:.0f} ms, neither by a poll nor by the end of a handler: "
            f"more than max_poll_interval_ms ({limit_s * 1000:.0f} ms)"
        )
        session.ended = reason
        self._post(SessionLost(session, reason, overdue_ms=int(idle_s * 1000)))
        await self._leave(reason)
