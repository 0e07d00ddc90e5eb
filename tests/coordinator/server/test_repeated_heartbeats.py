"""A heartbeat like the last of its connection is answered as any other, whichever way it takes."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from dataclasses import replace
from random import Random
from typing import cast

import pytest
from aiohttp import ClientSession

from client.admin import Admin
from client.bench.raw_group import form_group
from coordinator.embedded import Coordinator
from coordinator.runtime.fair_queue import PER_TURN
from coordinator.server.connection import Connection
from coordinator.server.dispatch import WireCall
from coordinator.server.repeated_heartbeats import RepeatedHeartbeats
from coordinator.server.request_meter import SAMPLED
from protocol.codec import decode_message, encode_message
from protocol.errors import ErrorCode
from protocol.framing import FrameReader, decode_response, encode_request
from protocol.messages import Request
from protocol.messages.cluster import ApiVersionsRequest
from protocol.messages.groups import (
    HeartbeatRequest,
    HeartbeatResponse,
    JoinGroupProtocol,
    JoinGroupRequest,
    LeaveGroupRequest,
    LeavingMember,
)
from protocol.messages.offsets import OffsetCommitPartition, OffsetCommitRequest, OffsetCommitTopic


class Client:
    """A connection that sends what a test says, in the pieces that it says."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader, self._writer = reader, writer
        self._frames = FrameReader()

    @classmethod
    async def to(cls, address: str) -> Client:
        host, _, port = address.rpartition(":")
        return cls(*await asyncio.open_connection(host, int(port)))

    async def send(self, data: bytes) -> None:
        self._writer.write(data)
        await self._writer.drain()

    async def codes(self, count: int) -> dict[int, int]:
        """The error code of each answer, by its correlation id."""
        codes: dict[int, int] = {}
        async with asyncio.timeout(30):
            while len(codes) < count:
                data = await self._reader.read(65_536)
                assert data, f"{len(codes)} of {count} were answered"
                for payload in self._frames.feed(data):
                    frame = decode_response(payload)
                    assert frame.error_code == ErrorCode.NONE, frame.error_message
                    assert frame.correlation_id not in codes
                    codes[frame.correlation_id] = frame.body[0]
        return codes

    async def close(self) -> None:
        self._writer.close()
        await self._writer.wait_closed()


def frame(request: Request, number: int) -> bytes:
    return encode_request(request.api_key, 0, number, "c", encode_message(request))


async def beats_of_a_group(address: str, size: int, group: str = "g") -> list[HeartbeatRequest]:
    members = await form_group(address, group, size)
    return [HeartbeatRequest(group, member.generation, member.member_id, None, 0) for member in members]


@pytest.fixture
def repeated(monkeypatch: pytest.MonkeyPatch) -> list[bool]:
    """Of each piece of data that came: whether it was answered in one pass."""
    found: list[bool] = []
    answer = RepeatedHeartbeats.answer

    def noted(self: RepeatedHeartbeats, connection: Connection, data: bytes) -> bool:
        found.append(answer(self, connection, data))
        return found[-1]

    monkeypatch.setattr(RepeatedHeartbeats, "answer", noted)
    return found


@pytest.fixture
async def coordinator(repeated: list[bool]) -> AsyncIterator[Coordinator]:
    async with Coordinator(log_level="error") as running:
        yield running


async def test_all_but_the_first_of_a_stable_member_take_one_pass(
    coordinator: Coordinator, repeated: list[bool]
) -> None:
    (beat,) = await beats_of_a_group(coordinator.address, 1)
    client = await Client.to(coordinator.address)
    repeated.clear()
    for number in (1, 127, 128, 255, 256, 65_535, 65_536, 2**32 - 1):
        await client.send(frame(beat, number))
        assert await client.codes(1) == {number: ErrorCode.NONE}
    assert repeated == [False] + [True] * 7
    await client.close()


async def test_what_is_no_such_heartbeat_takes_the_usual_way_and_the_next_heartbeat_one_pass(
    coordinator: Coordinator, repeated: list[bool]
) -> None:
    (beat,) = await beats_of_a_group(coordinator.address, 1)
    client = await Client.to(coordinator.address)
    await client.send(frame(beat, 1))
    await client.codes(1)
    others: Sequence[tuple[Request, int]] = (
        (replace(beat, generation_id=beat.generation_id + 1), ErrorCode.ILLEGAL_GENERATION),
        (replace(beat, member_id="nobody"), ErrorCode.UNKNOWN_MEMBER_ID),
        (ApiVersionsRequest("other"), ErrorCode.NONE),
    )
    for number, (request, code) in enumerate(others, 10):
        repeated.clear()
        await client.send(frame(request, number))
        assert await client.codes(1) == {number: code}
        assert repeated == [False]
    for number in (20, 21):
        await client.send(frame(beat, number))
        assert await client.codes(1) == {number: ErrorCode.NONE}
    assert repeated[-1]
    await client.close()


@pytest.mark.parametrize("seed", range(8))
async def test_a_stream_cut_anywhere_is_answered_frame_by_frame(coordinator: Coordinator, seed: int) -> None:
    random = Random(seed)
    beats = await beats_of_a_group(coordinator.address, 3)
    client = await Client.to(coordinator.address)
    stale = replace(beats[0], generation_id=beats[0].generation_id - 1)
    expected: dict[int, int] = {}
    stream: list[bytes] = []
    for number in range(1, 400):
        request = random.choice((beats[0], beats[0], beats[0], beats[1], beats[2], stale))
        expected[number * 37] = ErrorCode.ILLEGAL_GENERATION if request is stale else ErrorCode.NONE
        stream.append(frame(request, number * 37))

    async def pieces() -> None:
        if random.random() < 0.5:
            for each in stream:  # as most clients do
                await client.send(each)
                await asyncio.sleep(0)
            return
        data = b"".join(stream)
        while data:
            size = random.choice((1, 3, 40, 41, 42, 200, 5_000))
            await client.send(data[:size])
            data = data[size:]
            await asyncio.sleep(0)

    async with asyncio.TaskGroup() as tasks:
        tasks.create_task(pieces())
        answered = tasks.create_task(client.codes(len(expected)))
    assert answered.result() == expected
    await client.close()


async def test_a_member_that_has_left_is_told_so(coordinator: Coordinator, repeated: list[bool]) -> None:
    beat, other = await beats_of_a_group(coordinator.address, 2)
    client, admin = await Client.to(coordinator.address), await Client.to(coordinator.address)
    for number in (1, 2):
        await client.send(frame(beat, number))
        await client.codes(1)
    assert repeated[-1]
    await admin.send(frame(LeaveGroupRequest("g", (LeavingMember(other.member_id),)), 1))
    await admin.codes(1)
    await client.send(frame(beat, 3))
    assert await client.codes(1) == {3: ErrorCode.REBALANCE_IN_PROGRESS}
    await admin.send(frame(LeaveGroupRequest("g", (LeavingMember(beat.member_id),)), 2))
    await admin.codes(1)
    await client.send(frame(beat, 4))
    assert await client.codes(1) == {4: ErrorCode.UNKNOWN_MEMBER_ID}
    for each in (client, admin):
        await each.close()


class Way:
    """A connection of the coordinator over which heartbeats take one pass, and what a test does to it."""

    def __init__(self, beat: HeartbeatRequest, client: Client, connection: Connection) -> None:
        self.beat, self.client, self.connection = beat, client, connection


@pytest.fixture
async def way(coordinator: Coordinator) -> AsyncIterator[Way]:
    (beat,) = await beats_of_a_group(coordinator.address, 1)
    assert coordinator._daemon is not None
    assert coordinator._daemon._listener is not None
    before = set(coordinator._daemon._listener._connections)
    client = await Client.to(coordinator.address)
    await client.send(frame(beat, 1))
    await client.codes(1)
    (connection,) = set(coordinator._daemon._listener._connections) - before
    yield Way(beat, client, connection)
    await client.close()


def repeated_over(way: Way, number: int) -> bool:
    """Whether a heartbeat that comes now is answered in one pass."""
    answer = way.connection._answer_repeated
    assert answer is not None
    return answer(way.connection, frame(way.beat, number))


async def test_a_heartbeat_takes_one_pass_only_while_its_connection_has_nothing_else(way: Way) -> None:
    wire, connection = way.connection.wire, way.connection
    numbers = iter(range(2, 100))
    assert repeated_over(way, next(numbers))

    wire.calls[7] = cast("WireCall", object())  # a commit that waits for the disk
    assert not repeated_over(way, next(numbers))
    del wire.calls[7]

    wire.pending.append(b"another request that is there and waits for its turn")
    assert not repeated_over(way, next(numbers))
    wire.pending.clear()

    wire.receive(frame(way.beat, 5)[:10])  # half a frame: what comes is its rest, whatever it looks like
    assert not repeated_over(way, next(numbers))
    wire.receive(frame(way.beat, 5)[10:])
    wire.pending.clear()
    wire.pending_bytes = 0

    for held_up in ("congested", "busy", "closing"):
        setattr(wire, held_up, True)
        assert not repeated_over(way, next(numbers)), held_up
        setattr(wire, held_up, False)

    budget = connection.budget
    budget.used, used = budget.limit, budget.used
    assert not repeated_over(way, next(numbers)), "requests take all the memory that they may"
    budget.used = used

    assert repeated_over(way, next(numbers))
    await way.client.codes(2)


async def test_a_frame_whose_second_half_is_a_heartbeat_is_one_request(way: Way, repeated: list[bool]) -> None:
    """A JoinGroup with a heartbeat's bytes as the metadata of its protocol, cut right before and behind them."""
    inner = frame(way.beat, 3)
    join = frame(JoinGroupRequest("other", 6_000, 6_000, "", None, "work", (JoinGroupProtocol("p", inner),)), 2)
    at = join.index(inner)
    repeated.clear()
    for piece in (join[:at], inner, join[at + len(inner) :]):
        await way.client.send(piece)
        await asyncio.sleep(0.05)
    assert list(await way.client.codes(1)) == [2]
    assert repeated
    assert True not in repeated


async def test_no_more_take_one_pass_than_a_turn_of_the_loop_may_do(way: Way) -> None:
    """The connections' queue counts them, and so does that of the answers; what is beyond takes its turn."""
    passed = [repeated_over(way, number) for number in range(2, PER_TURN + 12)]
    assert passed.index(False) <= PER_TURN
    assert True not in passed[passed.index(False) :]
    await way.client.codes(passed.count(True))
    assert repeated_over(way, 200), "another turn"
    await way.client.codes(1)


async def test_what_takes_the_usual_way_in_the_end_is_counted_once(way: Way) -> None:
    queue = way.connection.fair_queue
    way.connection.software = "another client 1.0"
    done = queue._done
    assert not repeated_over(way, 2)
    assert queue._done == done
    way.connection.software = ""
    assert repeated_over(way, 3)
    assert queue._done == done + 1
    await way.client.codes(1)


async def test_one_pass_leaves_the_connection_as_the_usual_way_does(way: Way) -> None:
    connection = way.connection
    connection.heard_at_sweep, connection.client_id = -5, "another"
    received, sent = connection.received, connection.sent
    data = frame(way.beat, 9)
    await way.client.send(data)
    assert await way.client.codes(1) == {9: ErrorCode.NONE}
    assert connection.heard_at_sweep >= 0
    assert connection.frame_begun_at_sweep == -1
    assert (connection.client_id, connection.idle) == ("c", True)
    assert connection.received == received + len(data)
    assert connection.sent > sent
    assert connection.budget.used == 0


async def test_a_heartbeat_waits_for_the_disk_as_long_as_what_was_decided_before_does(way: Way) -> None:
    assert repeated_over(way, 2)
    await way.client.codes(1)
    address = "{}:{}".format(*way.connection.local)
    async with Admin(bootstrap_servers=address) as admin:
        await admin.create_topics({"t": 1})
    topics = (OffsetCommitTopic("t", (OffsetCommitPartition(0, 5),)),)
    other = await Client.to(address)
    commit = OffsetCommitRequest("g", way.beat.generation_id, way.beat.member_id, None, topics)
    shard = way.connection._answer_repeated.__self__._shard_of("g")  # type: ignore[union-attr]
    await other.send(frame(commit, 1))
    async with asyncio.timeout(30):
        while shard.at_rest:
            await asyncio.sleep(0)
    assert not repeated_over(way, 3)
    await other.codes(1)
    assert repeated_over(way, 4)
    await way.client.codes(1)
    await other.close()


async def test_they_are_counted_and_one_in_so_many_is_timed() -> None:
    async with Coordinator(log_level="error", http="127.0.0.1:0") as coordinator:
        (beat,) = await beats_of_a_group(coordinator.address, 1)
        client = await Client.to(coordinator.address)
        count = 3 * SAMPLED + 1
        for number in range(count):
            await client.send(frame(beat, number))
            await client.codes(1)
        async with ClientSession() as session, session.get(f"http://{coordinator.http_address}/metrics") as answer:
            lines = (await answer.text()).splitlines()
        values = {
            name: float(line.rpartition(" ")[2])
            for line in lines
            for name in ("cohort_requests_total", "cohort_request_duration_seconds_count")
            if line.startswith(name + "{") and 'api="Heartbeat"' in line and 'port="native"' in line
        }
        assert values == {"cohort_requests_total": count, "cohort_request_duration_seconds_count": 4}
        await client.close()


async def test_an_answer_is_the_one_that_the_usual_way_gives(coordinator: Coordinator) -> None:
    (beat,) = await beats_of_a_group(coordinator.address, 1)
    client = await Client.to(coordinator.address)
    await client.send(frame(beat, 5))
    first = await client._reader.read(1000)
    await client.send(frame(beat, 5))
    assert await client._reader.read(1000) == first
    payload = decode_response(first[4:])
    assert decode_message(HeartbeatResponse, payload.body) == HeartbeatResponse(ErrorCode.NONE)
    await client.close()
