"""Thousands of members in one process: bare requests and callbacks over shared connections, no task a member.

Each does what a client does: it asks for its id, joins with it (KIP-394), asks for its assignment, which the leader brings
for all, and then waits in heartbeats until it is called again.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from time import perf_counter
from typing import Any, Final, cast

from client.bench.requests import TIMEOUT_S, check
from client.cli.failure import CommandError
from client.transport.metadata import parse_bootstrap_servers
from protocol.codec import decode_message, encode_message
from protocol.errors import ErrorCode
from protocol.framing import FrameReader, decode_response, encode_request
from protocol.messages import Request
from protocol.messages.cluster import FindCoordinatorRequest, FindCoordinatorResponse
from protocol.messages.groups import (
    HeartbeatRequest,
    HeartbeatResponse,
    JoinGroupProtocol,
    JoinGroupRequest,
    JoinGroupResponse,
    LeaveGroupRequest,
    LeaveGroupResponse,
    LeavingMember,
    SyncGroupAssignment,
    SyncGroupRequest,
    SyncGroupResponse,
)
from protocol.subscription import (
    CONSUMER_PROTOCOL_TYPE,
    Subscription,
    TopicPartition,
    encode_assignment,
    encode_subscription,
)

MEMBERS_PER_CONNECTION: Final = 100
"""As many as have room in what one connection may have under way: a join and a heartbeat each."""

_REBALANCE_TIMEOUT_MS: Final = 60_000
_HEARTBEAT_WAIT_MS: Final = 3_000
_TOPIC: Final = "work"
_PROTOCOL: Final = JoinGroupProtocol("range", encode_subscription(Subscription((_TOPIC,))))
_AGAIN: Final = frozenset({ErrorCode.REBALANCE_IN_PROGRESS, ErrorCode.ILLEGAL_GENERATION})
_NOT_YET: Final = frozenset({ErrorCode.COORDINATOR_LOAD_IN_PROGRESS, ErrorCode.COORDINATOR_NOT_AVAILABLE})
_NOT_YET_S: Final = 0.01


class Wire(asyncio.Protocol):
    """One connection; a request comes with the function that gets the body of its answer."""

    def __init__(self, on_fault: Callable[[str], None]) -> None:
        self._on_fault = on_fault
        self._reader = FrameReader()
        self._waiting: dict[int, Callable[[Any], None]] = {}
        self._last = 0
        self._transport: asyncio.Transport | None = None

    def ask(self, request: Request, answered: Callable[[Any], None]) -> None:
        """Sends a request. Nothing happens on a connection that is gone: its loss was told."""
        self._last += 1
        self._waiting[self._last] = answered
        if self._transport is not None:
            self._transport.write(encode_request(request.api_key, 0, self._last, "crowd", encode_message(request)))

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Called by the loop."""
        self._transport = cast("asyncio.Transport", transport)

    def data_received(self, data: bytes) -> None:
        """Called by the loop."""
        for payload in self._reader.feed(data):
            answer = decode_response(payload)
            if answer.error_code != ErrorCode.NONE:
                self._on_fault(f"a request was refused: {answer.error_message}")
                continue
            self._waiting.pop(answer.correlation_id)(answer.body)

    def connection_lost(self, exc: Exception | None) -> None:
        """Called by the loop."""
        if self._transport is not None:
            self._on_fault(f"the daemon closed a connection: {exc}")

    def close(self) -> None:
        """Closes without an error."""
        transport, self._transport = self._transport, None
        if transport is not None:
            transport.abort()


class CrowdGroup:
    """One group as its members see it, and whether all of them have their share of one generation."""

    def __init__(self, crowd: Crowd, group_id: str) -> None:
        self.group_id = group_id
        self.members: list[CrowdMember] = []
        self.crowd = crowd
        self.generation = 0
        self._synced = 0
        self._after = 0

    def expect(self) -> None:
        """From here on only a generation later than the present one counts."""
        self._after, self._synced = self.generation, 0

    def synced(self, generation: int) -> None:
        """A member has its share."""
        if generation > self.generation:
            self.generation, self._synced = generation, 0
        if generation == self.generation > self._after:
            self._synced += 1
            if self._synced == len(self.members):
                self.crowd.settled(self)


class CrowdMember:
    """One member; each answer leads to its next request."""

    def __init__(self, group: CrowdGroup, wire: Wire) -> None:
        self.group = group
        self.generation = -1
        self.member_id = ""
        self._wire = wire
        self._gone = False

    def join(self) -> None:
        """Joins, or rejoins."""
        crowd = self.group.crowd
        if self.member_id:
            crowd.last_join_s = perf_counter()
        request = JoinGroupRequest(
            self.group.group_id, crowd.session_timeout_ms, _REBALANCE_TIMEOUT_MS, self.member_id, None,
            CONSUMER_PROTOCOL_TYPE, (_PROTOCOL,),
        )  # fmt: skip
        self._wire.ask(request, self._joined)

    def leave(self) -> None:
        """Leaves its group for good."""
        self._gone = True
        self.group.members.remove(self)
        request = LeaveGroupRequest(self.group.group_id, (LeavingMember(self.member_id),))
        self._wire.ask(request, lambda body: check(decode_message(LeaveGroupResponse, body).error_code, "leave"))

    def _joined(self, body: Any) -> None:
        joined = decode_message(JoinGroupResponse, body)
        if self._gone:
            return
        if joined.error_code == ErrorCode.MEMBER_ID_REQUIRED:
            self.member_id = joined.member_id
            self.join()
        elif not self._went_wrong(joined.error_code, joined.error_message):
            self.generation = joined.generation_id
            self._sync(joined)

    def _sync(self, joined: JoinGroupResponse) -> None:
        leads = joined.leader == self.member_id
        shares = (
            tuple(
                SyncGroupAssignment(each.member_id, encode_assignment([TopicPartition(_TOPIC, number)]))
                for number, each in enumerate(joined.members)
            )
            if leads
            else ()
        )
        request = SyncGroupRequest(
            self.group.group_id,
            self.generation,
            self.member_id,
            None,
            joined.protocol_type,
            joined.protocol_name,
            shares,
        )
        self._wire.ask(request, self._synced)

    def _synced(self, body: Any) -> None:
        synced = decode_message(SyncGroupResponse, body)
        if not self._gone and not self._went_wrong(synced.error_code, synced.error_message):
            self.group.synced(self.generation)
            self._beat()

    def _beat(self) -> None:
        request = HeartbeatRequest(self.group.group_id, self.generation, self.member_id, None, _HEARTBEAT_WAIT_MS)
        self._wire.ask(request, self._beaten)

    def _beaten(self, body: Any) -> None:
        beaten = decode_message(HeartbeatResponse, body)
        if not self._gone and not self._went_wrong(beaten.error_code, beaten.message):
            self._beat()

    def _went_wrong(self, code: int, message: str) -> bool:
        """Joins again if the answer says so."""
        if code == ErrorCode.NONE:
            return False
        if code == ErrorCode.UNKNOWN_MEMBER_ID:
            self.group.crowd.missed_sessions += 1
            self.member_id = ""
        elif code not in _AGAIN:
            self.group.crowd.fail(f"a member of {self.group.group_id} was refused with code {code}: {message}")
            return True
        self.join()
        return True


@dataclass(frozen=True, slots=True)
class Settled:
    """How long the groups took: since it began, and since the last JoinGroup was sent; in seconds."""

    seconds: float
    since_last_join_s: float


class Crowd:
    """Members of one or many groups. Open it with ``await Crowd.connect(...)``."""

    def __init__(self, wires: Sequence[Wire], session_timeout_ms: int) -> None:
        self.session_timeout_ms = session_timeout_ms
        self.last_join_s = 0.0
        self.missed_sessions = 0
        self.groups: list[CrowdGroup] = []
        self._wires = wires
        self._members = 0
        self._unsettled: dict[CrowdGroup, None] = {}
        self._done: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    @classmethod
    async def connect(cls, address: str, members: int, session_timeout_ms: int) -> Crowd:
        """Opens connections enough for so many members."""
        wires: list[Wire] = []
        crowd = cls(wires, session_timeout_ms)
        ((host, port),) = parse_bootstrap_servers(address)
        loop = asyncio.get_running_loop()
        for _ in range(0, members, MEMBERS_PER_CONNECTION):
            _, wire = await loop.create_connection(lambda: Wire(crowd.fail), host, port)
            wires.append(wire)
        return crowd

    async def add_group(self, group_id: str) -> CrowdGroup:
        """A group without members, whose coordinator is ready."""
        loop = asyncio.get_running_loop()
        while True:
            answer: asyncio.Future[Any] = loop.create_future()
            self._wires[0].ask(FindCoordinatorRequest(group_id), answer.set_result)
            async with asyncio.timeout(TIMEOUT_S):
                found = decode_message(FindCoordinatorResponse, await answer)
            if found.error_code not in _NOT_YET:
                break
            await asyncio.sleep(_NOT_YET_S)
        check(found.error_code, found.error_message)
        group = CrowdGroup(self, group_id)
        self.groups.append(group)
        return group

    def add_member(self, group: CrowdGroup) -> CrowdMember:
        """A member that has not joined yet."""
        member = CrowdMember(group, self._wires[self._members % len(self._wires)])
        self._members += 1
        group.members.append(member)
        return member

    async def settle(self, begin: Callable[[], None]) -> Settled:
        """Calls ``begin``, which disturbs every group, and waits until each has settled again.

        Raises ``CommandError`` when something goes wrong, or does not happen in time.
        """
        self._done = asyncio.get_running_loop().create_future()
        self._unsettled = dict.fromkeys(self.groups)
        for group in self.groups:
            group.expect()
        began = perf_counter()
        self.last_join_s = began
        begin()
        try:
            async with asyncio.timeout(TIMEOUT_S):
                await self._done
        except TimeoutError:
            raise CommandError(f"{len(self._unsettled)} groups did not settle within {TIMEOUT_S:.0f} s") from None
        ended = perf_counter()
        return Settled(ended - began, ended - self.last_join_s)

    def settled(self, group: CrowdGroup) -> None:
        """All members of a group have their share of the same generation."""
        self._unsettled.pop(group, None)
        if not self._unsettled and not self._done.done():
            self._done.set_result(None)

    def fail(self, what: str) -> None:
        """Something that must not happen; the wait for the groups ends with it."""
        if not self._done.done():
            self._done.set_exception(CommandError(what))

    def close(self) -> None:
        """Closes the connections; the members stay until their sessions are over."""
        for wire in self._wires:
            wire.close()
