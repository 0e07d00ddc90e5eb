"""Everything has a bound: what one client holds, what all hold together, how long anything waits."""

from __future__ import annotations

import asyncio
import itertools
import struct
import threading
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import pytest

from coordinator.config import Settings
from coordinator.daemon import Daemon
from coordinator.embedded import SYSTEM_ORIGINS
from coordinator.log.partition import PartitionLog
from coordinator.log.producers import AppendResult
from protocol.codec import encode_message
from protocol.errors import ErrorCode
from protocol.framing import encode_frame, encode_request
from protocol.messages import ApiKey, Request
from protocol.messages.cluster import ApiVersionsRequest, FindCoordinatorRequest, MetadataRequest
from protocol.messages.groups import (
    DescribeGroupsRequest,
    HeartbeatRequest,
    JoinGroupProtocol,
    JoinGroupRequest,
    ListGroupsRequest,
    SyncGroupAssignment,
    SyncGroupRequest,
)
from protocol.messages.records import FetchPartition, FetchRequest, FetchTopic, ProduceRequest, TopicProduceData
from protocol.messages.records import PartitionProduceData as Data
from protocol.messages.topics import CreatableTopic, CreateTopicsRequest, DeleteTopicsRequest
from protocol.record_batch import encode_batch
from tests.coordinator.log.faulty_storage import HookedStorage
from tests.integration.test_bad_input import RawClient, raw


class World:
    """A daemon in this process whose disk can be held up."""

    def __init__(self, tmp_path: Path, **settings: int) -> None:
        self.disk_works = threading.Event()
        self.disk_works.set()
        storage = HookedStorage(tmp_path / "data", self._hook)
        self.daemon = Daemon(Settings(port=0, **settings), storage, SYSTEM_ORIGINS)  # type: ignore[arg-type]

    def _hook(self, operation: str, path: str) -> None:
        if operation == "sync" and path.endswith(".log"):
            assert self.disk_works.wait(30)

    @property
    def address(self) -> str:
        return "{}:{}".format(*self.daemon.address)

    async def __aenter__(self) -> World:  # noqa: PYI034
        await self.daemon.start()
        return self

    async def __aexit__(self, *error: object) -> None:
        self.disk_works.set()
        await self.daemon.stop()


def frame(request: Request, number: int) -> bytes:
    return encode_request(request.api_key, 0, number, "test", encode_message(request))


async def ask(client: RawClient, request: Request, number: int = 0) -> list[object]:
    await client.send(frame(request, number))
    answer = await client.answer()
    assert answer is not None
    assert answer.correlation_id == number
    return list(answer.body)


async def create(client: RawClient, name: str, partitions: int = 1) -> None:
    (topics,) = await ask(client, CreateTopicsRequest((CreatableTopic(name, partitions),)))
    assert topics[0][1] == ErrorCode.NONE  # type: ignore[index]


def fetch(topic: str, offset: int, wait_ms: int, min_bytes: int = 1, max_bytes: int = 1 << 20) -> FetchRequest:
    return FetchRequest(wait_ms, min_bytes, max_bytes, (FetchTopic(topic, (FetchPartition(0, offset, max_bytes),)),))


def produce(topic: str, value: bytes, acks: int = -1) -> ProduceRequest:
    return ProduceRequest(
        None, acks, 30_000, (TopicProduceData(topic, (Data(0, encode_batch([value], timestamps_ms=[1])),)),)
    )


@pytest.fixture
async def world(tmp_path: Path) -> AsyncIterator[World]:
    async with World(tmp_path) as running:
        yield running


async def test_thousands_of_pipelined_requests_behind_parked_ones_are_all_answered(world: World) -> None:
    async with raw(world.address) as client:
        await create(client, "orders")
        parked = b"".join(frame(fetch("orders", 0, 300), number) for number in range(256))
        quick = b"".join(frame(ApiVersionsRequest(), 1000 + number) for number in range(3000))
        await client.send(parked + quick)
        answered = [answer.correlation_id for _ in range(3256) if (answer := await client.answer()) is not None]
        assert sorted(answered) == [*range(256), *range(1000, 4000)]


async def test_a_stalled_disk_stops_producers_and_not_the_memory(tmp_path: Path) -> None:
    """With acks 0 too: a request's bytes count until they are on disk."""
    async with World(tmp_path, max_request_memory_bytes=4 << 20) as world, raw(world.address) as client:
        await create(client, "orders")
        world.disk_works.clear()
        one = frame(produce("orders", b"x" * 100_000, acks=0), 0)
        sent = 0
        try:
            async with asyncio.timeout(2):
                for number in range(10_000):
                    await client.send(frame(produce("orders", b"x" * 100_000, acks=0), number))
                    sent += len(one)
        except TimeoutError:
            pass  # nobody reads our socket any more
        listener = world.daemon._listener
        assert listener is not None
        assert listener.budget.used < (4 << 20) + 2 * len(one)
        assert sent < 40 << 20, "what was sent lies in the kernel's socket buffers"
        world.disk_works.set()
        async with asyncio.timeout(20):
            while listener.budget.used:
                await asyncio.sleep(0.01)
        client.writer.transport.abort()


async def test_a_client_that_does_not_read_holds_one_answer_not_forty(world: World) -> None:
    async with raw(world.address) as client:
        await create(client, "orders")
        for number in range(9):
            await ask(client, produce("orders", b"x" * 1_000_000), number)
    async with raw(world.address) as client:
        await client.send(b"".join(frame(fetch("orders", 0, 0, 1, 8 << 20), number) for number in range(40)))
        await asyncio.sleep(0.5)
        listener = world.daemon._listener
        assert listener is not None
        (connection,) = [entry for entry in listener._connections if not entry.idle]
        assert connection.transport is not None
        assert connection.transport.get_write_buffer_size() < 3 * (9 << 20)


async def test_clients_that_do_not_read_get_less_at_a_time(tmp_path: Path) -> None:
    """The others are not held up, and get all there is once those are gone."""
    async with World(tmp_path, max_request_memory_bytes=64 << 20) as world, AsyncExitStack() as stack:
        reader = await stack.enter_async_context(raw(world.address))
        await create(reader, "orders")
        for number in range(32):
            await ask(reader, produce("orders", b"x" * 1_000_000), number)

        async def fetched() -> int:
            (_, ((_, (partition,)),), *_) = await ask(reader, fetch("orders", 0, 1000, 1, 32 << 20))  # type: ignore[misc]
            return len(partition[5])  # type: ignore[has-type]

        alone = await fetched()
        async with AsyncExitStack() as deaf:
            for number in range(20):
                client = await deaf.enter_async_context(raw(world.address))
                client.writer.transport.pause_reading()  # type: ignore[attr-defined]
                await client.send(frame(fetch("orders", 0, 0, 1, 32 << 20), number))
                await asyncio.sleep(0.03)
            listener = world.daemon._listener
            assert listener is not None
            transports = [entry.transport for entry in listener._connections if entry.transport is not None]
            held = sum(transport.get_write_buffer_size() for transport in transports)
            assert held < 64 << 20
            assert held > 16 << 20, "the kernel's buffers have not swallowed it all"
            assert 1_000_000 < await fetched() < alone
        async with asyncio.timeout(30):
            while await fetched() < alone:
                await asyncio.sleep(0.05)


async def test_answers_do_not_outgrow_requests(world: World) -> None:
    async with raw(world.address) as client:
        await create(client, "orders", 50)
        metadata = await ask(client, MetadataRequest(("orders",) * 4000))
        assert len(metadata[4]) == 1  # type: ignore[arg-type]
        described = await ask(client, DescribeGroupsRequest(("g",) * 4000))
        assert len(described[0]) == 1  # type: ignore[arg-type]


async def test_only_requests_made_of_long_byte_strings_may_be_large(world: World) -> None:
    async with raw(world.address) as client:
        await client.send(encode_frame([ApiKey.METADATA, 0, 1, "c", [["t" * 100] * 50_000]]))
        refused = await client.answer()
        assert refused is not None
        assert (refused.correlation_id, refused.error_code) == (1, ErrorCode.INVALID_REQUEST)
        assert "of this kind 4194304 are allowed" in refused.error_message
        assert (await ask(client, ApiVersionsRequest(), 2))[0] == ErrorCode.NONE, "the connection goes on"


@pytest.mark.parametrize(
    ("key", "body"),
    [
        (ApiKey.FETCH, [100, 1, 1000, [["t", [[0, 0, 0]] * 5_000]]]),
        (ApiKey.OFFSET_COMMIT, ["g", -1, "", None, [["t", [[0, 5]] * 5_000]]]),
        (ApiKey.DELETE_TOPICS, [["t"] * 9_000]),
        (ApiKey.PRODUCE, [None, -1, 1000, [["t", [[0, b""]] * 6_000]]]),
        (ApiKey.JOIN_GROUP, [{}] * 1_000_000),
    ],
    ids=lambda value: value.name if isinstance(value, ApiKey) else "",
)
async def test_requests_of_too_many_elements_are_refused_and_others_are_served(
    world: World, key: ApiKey, body: list[object]
) -> None:
    async with raw(world.address) as client:
        await client.send(encode_request(key, 0, 1, "c", body) + frame(ApiVersionsRequest(), 2))
        refused, served = await client.answer(), await client.answer()
        assert refused is not None
        assert served is not None
        assert (refused.correlation_id, refused.error_code) == (1, ErrorCode.INVALID_REQUEST)
        assert "elements (an element is one msgpack value)" in refused.error_message
        assert served.correlation_id == 2


async def test_an_answer_full_of_errors_is_not_many_times_its_request(world: World) -> None:
    """The codes are all there; the texts have a bound for all together."""
    name = "t" * 30_000
    body = encode_message(FetchRequest(0, 1, 1000, (FetchTopic(name, (FetchPartition(0, 0, 0),) * 2700),)))
    async with raw(world.address) as client:
        await client.send(encode_request(ApiKey.FETCH, 0, 1, "c", body))
        answer = await client.answer()
        assert answer is not None
        ((_, partitions),) = answer.body[1]
        assert {each[1] for each in partitions} == {ErrorCode.UNKNOWN_TOPIC_OR_PARTITION}
        assert 0 < sum(len(each[6]) for each in partitions) <= 64 * 1024


async def test_a_long_request_is_served_in_steps_and_what_came_after_it_waits(world: World) -> None:
    """Requests of others are served between the steps; those of the same connection keep their order."""
    many = tuple(Data(0, b"no batch") for _ in range(4000))
    async with raw(world.address) as client, raw(world.address) as other:
        await create(client, "orders")
        request = ProduceRequest(None, -1, 30_000, (TopicProduceData("orders", many),))
        await client.send(frame(request, 1) + frame(ApiVersionsRequest(), 2))
        quick = 0
        answers = [asyncio.ensure_future(client.answer()) for _ in range(1)]
        while not answers[0].done():
            await ask(other, ApiVersionsRequest(), quick)
            quick += 1
        first, second = answers[0].result(), await client.answer()
        assert first is not None
        assert second is not None
        assert (first.correlation_id, second.correlation_id) == (1, 2)
        assert len(first.body[0][0][1]) == 4000
        assert quick >= 3


async def test_long_polls_end_when_requests_take_all_the_memory(tmp_path: Path) -> None:
    """Else one client that parks them would keep all others from being read."""
    async with World(tmp_path, max_request_memory_bytes=1 << 20) as world, raw(world.address) as hostile:
        await create(hostile, "orders")
        wide = FetchRequest(60_000, 1, 1000, (FetchTopic("orders", (FetchPartition(0, 0, 1000),) * 2000),))
        await hostile.send(b"".join(frame(wide, number) for number in range(10)))
        async with asyncio.timeout(30), raw(world.address) as honest:
            assert (await ask(honest, ApiVersionsRequest()))[0] == ErrorCode.NONE
            for _ in range(9):  # the last of them has room to wait
                answer = await hostile.answer()
                assert answer is not None
                assert len(answer.body[1][0][1]) == 2000


async def test_group_ids_have_a_bound_before_anything_is_kept(world: World) -> None:
    async with raw(world.address) as client:
        assert (await ask(client, FindCoordinatorRequest("g" * 5000)))[0] == ErrorCode.INVALID_GROUP_ID
        assert (await ask(client, HeartbeatRequest("g" * 5000, 1, "m")))[0] == ErrorCode.INVALID_GROUP_ID


async def test_half_a_frame_is_waited_for_and_then_not(tmp_path: Path) -> None:
    async with World(tmp_path, frame_timeout_ms=400) as world, raw(world.address) as client:
        await client.send(frame(ApiVersionsRequest(), 1)[:7])
        async with asyncio.timeout(20):
            assert await client.answer() is None


async def test_frames_that_are_not_complete_have_a_bound_together(tmp_path: Path) -> None:
    """Whoever holds most gives way: large ones cannot throw out small ones."""
    async with World(tmp_path, max_request_memory_bytes=4 << 20) as world, raw(world.address) as small:
        listener = world.daemon._listener
        assert listener is not None
        whole = frame(ApiVersionsRequest(), 7)
        await small.send(whole[:9])
        half = struct.pack(">I", 3 << 20) + bytes((0x95, ApiKey.PRODUCE)) + b"x" * (1 << 20)
        async with AsyncExitStack() as stack:
            large = [await stack.enter_async_context(raw(world.address)) for _ in range(12)]
            for client in large:
                await client.send(half)
            # Which of them are closed depends on the order in which their bytes arrive.
            reads = [asyncio.ensure_future(client.answer()) for client in large]
            try:
                ends = [await first for first in itertools.islice(asyncio.as_completed(reads, timeout=30), 9)]
            finally:
                for read in reads:
                    read.cancel()
                await asyncio.gather(*reads, return_exceptions=True)
            assert ends == [None] * 9  # three are what the bound leaves room for
            held = sum(connection.wire.buffered_bytes for connection in listener._connections)
            assert held <= 4 << 20
        await small.send(whole[9:])
        answer = await small.answer()
        assert answer is not None
        assert answer.correlation_id == 7


async def test_a_silent_connection_is_closed_and_one_that_waits_for_an_answer_is_not(tmp_path: Path) -> None:
    async with World(tmp_path, max_idle_ms=300) as world, raw(world.address) as silent, raw(world.address) as waiting:
        await create(waiting, "orders")
        await waiting.send(frame(fetch("orders", 0, 1500), 7))
        async with asyncio.timeout(20):
            assert await silent.answer() is None
            answer = await waiting.answer()
        assert answer is not None
        assert answer.correlation_id == 7


async def test_what_an_administrator_sees_is_on_disk(world: World) -> None:
    """Else a crash could take back a generation that somebody has been shown (law 2)."""
    async with raw(world.address) as member, raw(world.address) as admin:
        await ask(member, FindCoordinatorRequest("g"))
        member_id = ""
        for _ in range(2):  # the first answer gives the id, the second JoinGroup joins with it
            joined = await ask(
                member, JoinGroupRequest("g", 10_000, 10_000, member_id, None, "work", (JoinGroupProtocol("p", b""),))
            )
            member_id = str(joined[6])
        world.disk_works.clear()
        gives = (SyncGroupAssignment(member_id, b"mine"),)
        await member.send(frame(SyncGroupRequest("g", 1, member_id, None, "work", "p", gives), 1))
        await asyncio.sleep(0.05)
        await admin.send(frame(DescribeGroupsRequest(("g",)), 2) + frame(ListGroupsRequest(), 3))
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.3):
                await admin.answer()
        world.disk_works.set()
        answers = [await admin.answer(), await admin.answer()]
        assert sorted(answer.correlation_id for answer in answers if answer is not None) == [2, 3]


async def test_a_stop_answers_what_waits(tmp_path: Path) -> None:
    async with World(tmp_path) as world, raw(world.address) as client:
        await create(client, "orders")
        await client.send(frame(fetch("orders", 0, 60_000), 1) + frame(MetadataRequest((), 10**6, 60_000), 2))
        await asyncio.sleep(0.1)
        async with asyncio.timeout(20):
            await world.daemon.stop()
            answers = [await client.answer(), await client.answer()]
        assert sorted(answer.correlation_id for answer in answers if answer is not None) == [1, 2]


async def test_a_fetch_waits_for_no_more_than_it_may_carry(world: World) -> None:
    async with raw(world.address) as client:
        await create(client, "orders")
        await ask(client, produce("orders", b"x" * 1000))
        async with asyncio.timeout(20):
            await ask(client, fetch("orders", 0, 60_000, min_bytes=1 << 20, max_bytes=500))


async def test_a_fetch_of_a_topic_that_is_deleted_learns_it_at_once(world: World) -> None:
    async with raw(world.address) as client, raw(world.address) as admin:
        await create(client, "orders")
        await client.send(frame(fetch("orders", 0, 60_000), 1))
        await asyncio.sleep(0.05)
        await ask(admin, DeleteTopicsRequest(("orders",)))
        async with asyncio.timeout(20):
            answer = await client.answer()
        assert answer is not None
        assert answer.body[1][0][1][0][1] == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION


async def test_a_fetch_of_several_bytes_gets_them_when_they_are_there(world: World) -> None:
    async with raw(world.address) as consumer, raw(world.address) as producer:
        await create(producer, "orders")
        await consumer.send(frame(fetch("orders", 0, 60_000, min_bytes=5000), 1))
        for number in range(10):
            await ask(producer, produce("orders", b"x" * 1000), number)
        async with asyncio.timeout(20):
            answer = await consumer.answer()
        assert answer is not None
        assert len(answer.body[1][0][1][0][5]) >= 5000


async def test_a_daemon_tells_how_large_requests_may_be(tmp_path: Path) -> None:
    async with World(tmp_path, max_frame_bytes=5 << 20) as world, raw(world.address) as client:
        _, keys, *_ = await ask(client, ApiVersionsRequest())
        limits = {key: tuple(rest) for key, _, _, *rest in keys}  # type: ignore[attr-defined]
    assert limits[ApiKey.PRODUCE] == (5 << 20, 16_384)
    assert limits[ApiKey.OFFSET_COMMIT] == (5 << 20, 8_192)
    assert limits[ApiKey.FETCH] == (4 << 20, 16_384)


async def test_a_produce_that_fails_in_the_middle_gives_its_memory_back(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By a fault of the daemon's own: the other partition is stored, and the whole request is answered with an error."""
    append, faults = PartitionLog.append_all, iter((False, True))

    def faulty(*args: Any) -> list[AppendResult]:
        if next(faults):
            raise RuntimeError("a fault of ours")
        return append(*args)

    monkeypatch.setattr(PartitionLog, "append_all", faulty)
    batch = encode_batch([b"v" * 10_000], timestamps_ms=[1])
    data = (TopicProduceData("orders", (Data(0, batch), Data(1, batch))),)
    listener = world.daemon._listener
    assert listener is not None
    async with raw(world.address) as client:
        await create(client, "orders", 2)
        await client.send(frame(ProduceRequest(None, -1, 30_000, data), 1))
        answer = await client.answer()
        assert answer is not None
        assert answer.error_code == ErrorCode.UNKNOWN_SERVER_ERROR
        async with asyncio.timeout(30):
            while listener.budget.used:
                await asyncio.sleep(0.01)


async def test_what_requests_and_their_answers_take_of_a_stop_is_counted_once(tmp_path: Path) -> None:
    """A client reads nothing: its fetch waits for that, and then its connection does."""
    async with World(tmp_path, drain_timeout_ms=3_000) as world, raw(world.address) as client:
        await create(client, "orders")
        await ask(client, produce("orders", b"v"))
        listener, loop = world.daemon._listener, asyncio.get_running_loop()
        assert listener is not None
        await client.send(frame(fetch("orders", 0, 60_000, min_bytes=1_000_000), 1))
        (connection,) = listener._connections
        async with asyncio.timeout(30):
            while connection.idle:
                await asyncio.sleep(0.001)
        client.writer.transport.pause_reading()  # type: ignore[attr-defined]
        connection.send([b"x" * (48 << 20)])  # more than sockets hold
        began_s = loop.time()
        await world.daemon.stop()
        assert 2.9 < loop.time() - began_s < 6.0
