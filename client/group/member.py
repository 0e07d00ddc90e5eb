"""``Member``: membership of a group for any program, with or without topics."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable, Mapping, Sequence
from random import Random
from types import TracebackType
from typing import Final, NamedTuple, Self

from client.errors import ClosedError
from client.group import DEFAULT_STOP_S, Generation, Membership, MembershipSettings, State, StopTurn, call_program
from client.log import get_logger
from client.option_names import explains_options
from client.transport.background_loop import Background
from client.transport.cluster import Cluster
from client.transport.deadline import Deadline, wait_s
from client.transport.metadata import Topology
from client.types.metrics import MemberMetrics
from protocol.messages.groups import JoinGroupMember

Assign = Callable[[list[tuple[str, bytes]]], Mapping[str, bytes]]
Protocols = Sequence[tuple[str, bytes]] | Callable[[], Sequence[tuple[str, bytes]]]
OnRevoked = Callable[[str], Awaitable[None] | None]

log = get_logger()

_KEPT: Final = 64
"""Errors kept for an iterator that falls behind."""


class MemberAssignment(NamedTuple):
    """What a member got in a rebalance.

    ``assignment`` holds the bytes that the leader's ``assign`` made for it, ``reason`` says why the group rebalanced.
    """

    generation: int
    is_leader: bool
    assignment: bytes
    reason: str


class Member:
    """A member of a group that shares out work of any kind::

        def assign(members):  # runs where the leader is
            return {member_id: plan_for(metadata) for member_id, metadata in members}

        async with Member("resizers", metadata=b"8 cores", assign=assign) as member:
            async for generation, is_leader, assignment, reason in member:
                ...

    Iterating gives one ``MemberAssignment`` a rebalance, but none that was over before the program came to take it.
    ``assign`` gets ``(member_id, metadata)`` of all members, ordered as they joined, and returns each one's share; it
    runs in a worker thread of the member that leads. Without it every share is empty, which is enough to elect a leader.
    ``protocols`` are ``(name, metadata)`` pairs in order of preference, or a function that gives them before each join;
    the default is one named as the ``protocol_type`` with ``metadata``. ``on_revoked(reason)``, plain or coroutine, runs
    before the member gives up its share or when it learns that it has lost it: what is still at work on the share should
    stop there. A program that was suspended for longer than its session hears of the loss a moment after it goes on;
    ``state`` is "fenced" from the start, and what must not be done beside the next owner looks at it first.

    ``group_instance_id``, a name that no other process of the group has, makes a static member (KIP-345): ``stop`` does not
    leave the group, and a process that comes back with the name within ``session_timeout_ms`` gets the share it had, without
    a rebalance. Its share goes to others when the session is over, or when an administrator removes it
    (``Admin.remove_members``). A second process with the name takes its place; the first then raises
    ``FencedInstanceIdError`` at every call.

    Times are in milliseconds: without heartbeats for ``session_timeout_ms`` (45,000) the daemon takes the member for dead;
    a heartbeat waits ``heartbeat_interval_ms`` (3,000) for news, at most a third of the session; the group waits
    ``rebalance_timeout_ms`` (60,000) for this member at a rebalance. Heartbeats run in a background thread. A member that
    was removed or forgotten joins again by itself. ``background`` and ``random`` are for simulations. Raises ``ValueError``
    for settings that make no sense.
    """

    @explains_options
    def __init__(
        self,
        group_id: str,
        *,
        bootstrap_servers: str | Sequence[str] = "127.0.0.1:7337",
        metadata: bytes = b"",
        protocol_type: str = "work",
        protocols: Protocols | None = None,
        assign: Assign | None = None,
        on_revoked: OnRevoked | None = None,
        group_instance_id: str | None = None,
        client_id: str | None = None,
        session_timeout_ms: int = 45_000,
        heartbeat_interval_ms: int = 3_000,
        rebalance_timeout_ms: int = 60_000,
        request_timeout_ms: int = 30_000,
        background: Background | None = None,
        random: Random | None = None,
    ) -> None:
        settings = MembershipSettings(
            group_id=group_id,
            bootstrap_servers=bootstrap_servers,
            client_id=client_id or "cohort-member",
            protocol_type=protocol_type,
            session_timeout_ms=session_timeout_ms,
            heartbeat_interval_ms=heartbeat_interval_ms,
            rebalance_timeout_ms=rebalance_timeout_ms,
            request_timeout_ms=request_timeout_ms,
            group_instance_id=group_instance_id,
        )
        self.protocols: Protocols = protocols if protocols is not None else [(protocol_type, metadata)]
        """May be set at any time; ``rejoin`` makes the group see it."""
        self._news = asyncio.Event()
        self._share = _Share(lambda: self.protocols, on_revoked, self._news)
        self._membership = Membership(
            settings, self._share, _WorkAssigner(assign), on_news=self._news.set, background=background, random=random
        )
        self._started = False
        self._closed = False
        self._stop_turn = StopTurn()

    async def start(self) -> None:
        """Begins to join, without waiting for the end of that. Raises ``ClosedError`` after ``stop``."""
        if self._closed:
            raise ClosedError("this member was stopped; make a new one")
        if not self._started:
            self._started = True
            self._membership.start()

    async def stop(self, timeout: float | None = None, *, timeout_ms: float | None = None) -> None:
        """Calls ``on_revoked`` and leaves the group, within ``timeout`` seconds (or ``timeout_ms``; default 30 s).

        It keeps to that without a daemon too.

        What ``on_revoked`` raises now is logged. Calling it again waits for a call that is under way, and finishes what a
        cancelled one has left undone. Raises ``IllegalStateError`` inside ``on_revoked``, for which it would have to wait.
        """
        patience_s = wait_s(timeout, timeout_ms)
        self._membership.check_outside()
        self._stop_turn.check_outside("on_revoked")
        deadline = Deadline(1000 * (DEFAULT_STOP_S if patience_s is None else patience_s))
        self._closed = True
        self._news.set()
        async with self._stop_turn.take(deadline) as is_mine:
            if not is_mine:
                return  # the call under way goes on until its own deadline
            try:
                await self._membership.stop(deadline)
            finally:
                self._share.log_errors(self._membership.settings.group_id)

    close = stop

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.stop()

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> MemberAssignment:
        """The next assignment; waits for it. Raises what keeps this member out of its group, then joins again."""
        if not self._started:
            raise ClosedError("this member is not started: 'await member.start()' or use it in 'async with'")
        while True:
            self._news.clear()
            if self._closed:
                raise StopAsyncIteration
            self._membership.check()
            self._share.raise_error()
            if self._share.assignments and self._membership.holds_share():
                return self._share.assignments.popleft()
            await self._news.wait()

    @property
    def state(self) -> State:
        """One of "unjoined", "joining", "stable", "rebalancing", "fenced" (out of the group for now) or "closed"."""
        return self._membership.state

    @property
    def member_id(self) -> str:
        """The id the coordinator gave, empty before the first join."""
        session = self._membership.session
        return session.member_id if session is not None else ""

    @property
    def generation(self) -> int:
        """The generation this member is in, -1 before the first."""
        session = self._membership.session
        return session.generation if session is not None else -1

    def metrics(self) -> MemberMetrics:
        """Where it is in its group, and how often it was given a share."""
        return self._membership.metrics()

    def rejoin(self, reason: str) -> None:
        """Asks the group to rebalance, because of new ``protocols`` for example; ``reason`` is shown to people.

        A group rebalances for its leader always, and for another member if its protocols differ from the last join's.
        """
        self._membership.rejoin(reason)


class _WorkAssigner:
    """Runs the program's ``assign`` in a worker thread, so that heartbeats go on however long it takes."""

    def __init__(self, assign: Assign | None) -> None:
        self._assign = assign

    async def assign(
        self, cluster: Cluster, protocol: str, members: Sequence[JoinGroupMember], leader: str
    ) -> Mapping[str, bytes]:
        if self._assign is None:
            return {}
        asked = [(member.member_id, member.metadata) for member in members]
        return await asyncio.get_running_loop().run_in_executor(None, self._assign, asked)

    async def watch(self, cluster: Cluster, members: Sequence[JoinGroupMember], share: bytes) -> None:
        return  # nothing that a plan was made from can change but the members

    def outdated(self, topology: Topology) -> str | None:
        return None


class _Share:
    """The participant behind a ``Member``: keeps assignments for the iterator and calls ``on_revoked``."""

    def __init__(self, protocols: Callable[[], Protocols], on_revoked: OnRevoked | None, news: asyncio.Event) -> None:
        self.assignments: deque[MemberAssignment] = deque()  # one at most: it goes when its generation does
        self._protocols = protocols
        self._on_revoked = on_revoked
        self._news = news
        self._held = False
        self._errors: deque[Exception] = deque(maxlen=_KEPT)

    def protocols(self) -> Sequence[tuple[str, bytes]]:
        protocols = self._protocols()
        return protocols() if callable(protocols) else protocols

    def raise_error(self) -> None:
        if self._errors:
            raise self._errors.popleft()

    def log_errors(self, group_id: str) -> None:
        """Logs what ``on_revoked`` raised and no step of the program is left to raise."""
        for error in self._errors:
            log.error("on_revoked_failed", group=group_id, error=repr(error), exc_info=error)
        self._errors.clear()

    cooperative: Final = False

    def standing_protocols(self) -> None:
        """See ``Participant.standing_protocols``: the program gives up its share before each rebalance."""

    async def prepare(self, reason: str) -> None:
        await self.lose(reason)

    async def revoke(self, reason: str) -> None:
        await self.lose(reason)

    async def lose(self, reason: str) -> None:
        if not self._held:
            return
        self._held = False
        self.assignments.clear()  # an iterator that has not taken them yet must not take them for its own any more
        if self._on_revoked is None:
            return
        on_revoked = self._on_revoked
        error = await call_program("on_revoked", lambda: on_revoked(reason))
        if error is not None:  # the group waits for the rebalance to go on; the program's next step raises this
            self._errors.append(error)
            self._news.set()

    async def accept(self, generation: Generation) -> str | None:
        self._held = True
        session = generation.session
        self.assignments.append(
            MemberAssignment(session.generation, session.is_leader, generation.assignment, session.reason)
        )
        self._news.set()
        return None
