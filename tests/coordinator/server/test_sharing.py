"""Connections share the loop: many requests of one group on many connections do not hold up a request of another."""

from __future__ import annotations

import asyncio

from coordinator.log_output import RateLimitedLog
from coordinator.runtime.fair_queue import PER_TURN, FairQueue
from coordinator.server.budget import Arrivals, ByteBudget
from coordinator.server.connection import Connection, Handle
from coordinator.server.dispatch import WireCall
from coordinator.server.listener import native_port
from coordinator.server.unread_answers import UnreadAnswers
from protocol.codec import encode_message
from protocol.framing import encode_request
from protocol.messages import Request
from protocol.messages.cluster import ApiVersionsRequest, ApiVersionsResponse
from protocol.messages.groups import CARRY_ON, HeartbeatRequest, SyncGroupAssignment, SyncGroupRequest


class Wire(asyncio.Transport):
    """What asyncio would give a connection: takes bytes, and knows whether it is read."""

    def __init__(self) -> None:
        super().__init__()
        self.reading = True
        self.closed = False

    def write(self, data: bytes | bytearray | memoryview) -> None:
        """Nobody reads them here."""

    def is_closing(self) -> bool:
        return self.closed

    def close(self) -> None:
        self.closed = True

    def pause_reading(self) -> None:
        self.reading = False

    def resume_reading(self) -> None:
        self.reading = True


class Owner:
    """Answers every request at once and writes down whose it was."""

    max_in_flight = 256
    sweep = 0

    def __init__(self) -> None:
        self.budget = ByteBudget(1 << 30)
        self.arrivals: Arrivals[Connection] = Arrivals(1 << 30, lambda connection: None)
        self.unread: UnreadAnswers[Connection] = UnreadAnswers(1 << 30)
        self.fair_queue = FairQueue()
        self.warnings = RateLimitedLog(lambda: 0.0)
        self.handled: list[tuple[str, int]] = []
        self.handle: Handle[WireCall] = self._answer

    def admit(self, connection: Connection) -> bool:
        return True

    def forget(self, connection: Connection) -> None:
        """As the listener does."""
        self.arrivals.holds(connection, 0)
        self.unread.holds(connection, 0)

    def _answer(self, call: WireCall) -> None:
        self.handled.append((getattr(call.request, "group_id", ""), call.correlation_id))
        call.answer(CARRY_ON if isinstance(call.request, HeartbeatRequest) else ApiVersionsResponse(0, (), ""))


def frame(request: Request, number: int) -> bytes:
    return encode_request(request.api_key, 0, number, "test", encode_message(request))


def beats(group: str, numbers: range) -> bytes:
    return b"".join(frame(HeartbeatRequest(group, 1, "m"), number) for number in numbers)


def connected(owner: Owner) -> tuple[Connection, Wire]:
    connection, wire = Connection(owner, native_port(lambda call: owner.handle(call), 1 << 20)), Wire()
    connection.connection_made(wire)
    return connection, wire


async def test_a_burst_on_one_connection_is_served_in_order_and_over_several_turns() -> None:
    owner = Owner()
    connection, wire = connected(owner)
    connection.data_received(beats("g", range(10 * PER_TURN)))
    assert len(owner.handled) == PER_TURN
    assert not wire.reading, "more would only pile up"
    for _ in range(20):
        await asyncio.sleep(0)
    assert owner.handled == [("g", number) for number in range(10 * PER_TURN)]
    assert wire.reading


async def test_a_crowd_on_many_connections_does_not_hold_up_another_group_nor_a_request_without_one() -> None:
    owner = Owner()
    for first in range(100):
        connected(owner)[0].data_received(beats("crowd", range(1000 * first, 1000 * first + 50)))
    small, plain = connected(owner)[0], connected(owner)[0]
    await asyncio.sleep(0)
    small.data_received(beats("small", range(7)))
    plain.data_received(b"".join(frame(ApiVersionsRequest(), number) for number in range(7)))
    for _ in range(2):
        await asyncio.sleep(0)
    assert [number for group, number in owner.handled if group == "small"] == list(range(7))
    assert [number for group, number in owner.handled if group == ""] == list(range(7))
    assert len(owner.handled) <= 4 * PER_TURN
    while len(owner.fair_queue):
        await asyncio.sleep(0)
    assert len(owner.handled) == 100 * 50 + 14


async def test_requests_of_one_connection_keep_their_order_whatever_they_are_about() -> None:
    owner = Owner()
    connected(owner)[0].data_received(beats("crowd", range(500)))
    connection, _ = connected(owner)
    groups = ["a", "b", "crowd", "a", "c", "crowd", "b"]
    connection.data_received(
        b"".join(beats(group, range(1000 + number, 1001 + number)) for number, group in enumerate(groups))
    )
    while len(owner.fair_queue):
        await asyncio.sleep(0)
    assert [group for group, number in owner.handled if number >= 1000] == groups


async def test_a_request_that_does_not_parse_closes_its_connection_when_its_turn_comes() -> None:
    owner = Owner()
    connected(owner)[0].data_received(beats("crowd", range(500)))
    connection, wire = connected(owner)
    broken = beats("g", range(1)) + b"\x00\x00\x00\x02\x93\xc0" + beats("g", range(1, 2))
    connection.data_received(broken)
    while len(owner.fair_queue):
        await asyncio.sleep(0)
    assert [entry for entry in owner.handled if entry[0] == "g"] == [("g", 0)]
    assert wire.closed


async def test_a_connection_that_is_lost_while_it_waits_is_not_served() -> None:
    owner = Owner()
    connected(owner)[0].data_received(beats("crowd", range(500)))
    connection, _ = connected(owner)
    connection.data_received(beats("g", range(3)))
    connection.connection_lost(None)
    while len(owner.fair_queue):
        await asyncio.sleep(0)
    assert not [entry for entry in owner.handled if entry[0] == "g"]


async def test_a_large_request_is_decoded_in_turns_of_its_own_and_others_are_served_between_them() -> None:
    owner = Owner()
    large, other = connected(owner)[0], connected(owner)[0]
    shares = tuple(SyncGroupAssignment(f"member-{number}", b"share") for number in range(10_000))
    request = SyncGroupRequest("large", 1, "m", None, None, None, shares)
    large.data_received(frame(request, 1) + beats("large", range(2, 3)))
    assert owner.handled == [], "nothing of it was done where its last bytes came in"
    turns = 0
    while len(owner.fair_queue):
        other.data_received(beats("small", range(100 + turns, 101 + turns)))
        await asyncio.sleep(0)
        turns += 1
    assert [entry for entry in owner.handled if entry[0] == "large"] == [("large", 1), ("large", 2)]
    assert owner.handled.index(("large", 1)) >= 2, "unpacking, decoding and handling take a turn each"


async def test_a_large_request_that_is_malformed_closes_its_connection() -> None:
    owner = Owner()
    connection, wire = connected(owner)
    shares = tuple(SyncGroupAssignment(f"member-{number}", b"share") for number in range(10_000))
    body = encode_message(SyncGroupRequest("large", 1, "m", None, None, None, shares))
    body[1] = "a generation is a number"
    connection.data_received(encode_request(SyncGroupRequest.api_key, 0, 1, "test", body) + beats("g", range(2, 3)))
    while len(owner.fair_queue):
        await asyncio.sleep(0)
    assert owner.handled == []
    assert wire.closed


async def test_a_connection_that_is_lost_between_two_turns_of_its_large_request_is_not_served() -> None:
    owner = Owner()
    connection, _ = connected(owner)
    shares = tuple(SyncGroupAssignment(f"member-{number}", b"share") for number in range(10_000))
    connection.data_received(frame(SyncGroupRequest("large", 1, "m", None, None, None, shares), 1))
    await asyncio.sleep(0)
    connection.connection_lost(None)
    while len(owner.fair_queue):
        await asyncio.sleep(0)
    assert owner.handled == []


async def test_a_client_that_goes_while_it_waits_for_its_turn_leaves_no_bytes_behind() -> None:
    owner = Owner()
    connected(owner)[0].data_received(beats("crowd", range(500)))
    connection, _ = connected(owner)
    connection.data_received(beats("g", range(5)) + frame(HeartbeatRequest("g", 1, "m" * 5000), 5)[:-1])
    assert owner.arrivals.held > 5000
    connection.connection_lost(None)
    while len(owner.fair_queue):
        await asyncio.sleep(0)
    assert owner.arrivals.held == 0
