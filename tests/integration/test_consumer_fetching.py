"""Fetching ahead: what the program leaves lying does not starve the rest, and no fault ends the fetching."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from typing import Any

import pytest
import structlog

from client import Admin, Consumer, Producer, TopicPartition
from client.consumer import fetcher as fetcher_module
from client.consumer.fetcher import Fetcher, in_turn
from client.errors import InvalidRequestError
from client.transport.cluster import Cluster
from client.transport.connection import Connection
from coordinator import Coordinator
from protocol.messages import Request
from protocol.messages.records import FetchPartition, FetchRequest, FetchResponse, FetchTopic
from tests.daemon_process import DaemonProcess
from tests.integration.consuming import create, fill, take, until

RECORDS = 3000


@pytest.fixture(scope="module")
def address(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    with DaemonProcess(tmp_path_factory.mktemp("daemon") / "data") as daemon:
        yield daemon.address


def buffered(consumer: Consumer) -> dict[int, int]:
    return {tp.partition: state.buffered_bytes for tp, state in consumer._assignment.states.items()}


async def filled(address: str, topic: str) -> list[TopicPartition]:
    """Four partitions of a new topic, with ``RECORDS`` records each."""
    await create(address, **{topic: 4})
    partitions = [TopicPartition(topic, partition) for partition in range(4)]
    for tp in partitions:
        await fill(address, topic, range(RECORDS), tp.partition)
    return partitions


async def read_all(consumer: Consumer, *tps: TopicPartition) -> None:
    """Reads ``RECORDS`` records of each partition."""
    left = len(tps) * RECORDS
    async with asyncio.timeout(20):
        while left:
            left -= sum(map(len, (await consumer.getmany(*tps, timeout_ms=1000)).values()))


async def test_what_is_buffered_goes_with_its_partition(address: str) -> None:
    """Also of those that had no room beside the others, which a program with nothing left to read never makes."""
    partitions = await filled(address, "shut")
    async with Consumer(
        bootstrap_servers=address,
        auto_offset_reset="earliest",
        fetch_max_bytes=20_000,
        max_partition_fetch_bytes=10_000,
    ) as consumer:
        consumer.assign(partitions)
        await until(lambda: bool(consumer._fetcher._shut_out))
        consumer.assign([])
        await until(lambda: not consumer._fetcher._shut_out)


@pytest.mark.parametrize("paused", [True, False])
async def test_buffers_the_program_does_not_take_leave_the_others_their_share(address: str, paused: bool) -> None:
    topic = f"shares-{paused}".lower()
    partitions = await filled(address, topic)
    async with Consumer(
        bootstrap_servers=address,
        auto_offset_reset="earliest",
        fetch_max_bytes=60_000,
        max_partition_fetch_bytes=10_000,
    ) as consumer:
        left_lying, others = partitions[:2], partitions[2:]
        consumer.assign(left_lying)
        await until(lambda: all(buffered(consumer).values()) and len(buffered(consumer)) == 2)
        consumer.assign(partitions)
        if paused:
            consumer.pause(*left_lying)
        await read_all(consumer, *others)
        if paused:
            consumer.resume(*left_lying)
        await read_all(consumer, *left_lying)


async def test_a_fault_reaches_the_program_and_the_fetching_goes_on(
    address: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    await create(address, faulty=1)
    await fill(address, "faulty", range(5))
    async with Consumer(bootstrap_servers=address, auto_offset_reset="earliest") as consumer:
        consumer.assign([TopicPartition("faulty", 0)])
        assert await take(consumer, 2) == [0, 1]
        for place, method in ((Fetcher, "_dispatch"), (Cluster, "connection_to")):
            caplog.clear()

            def fail(*_: object, method: str = method) -> None:
                monkeypatch.undo()
                raise KeyError(method)

            async def told(place: type = place, method: str = method, fail: object = fail) -> bool:
                """Whether the poll told the fault; it does not when what it wants was buffered before."""
                monkeypatch.setattr(place, method, fail)
                consumer.seek(TopicPartition("faulty", 0), 2)
                try:
                    await take(consumer, 1)
                except KeyError as error:
                    return method in str(error)
                return False

            async with asyncio.timeout(30):
                while not await told():
                    pass
            monkeypatch.undo()
            consumer.seek(TopicPartition("faulty", 0), 2)
            assert await take(consumer, 3) == [2, 3, 4]
            assert "fetch_broken" in caplog.text


async def test_a_partition_that_always_has_more_starves_no_other_when_each_fetch_has_room_for_one() -> None:
    taken: Counter[int] = Counter()
    async with Coordinator() as coordinator:
        address = coordinator.address
        await create(address, hot=3)
        async with Producer(address, batch_size=8_000) as producer:
            for partition, count in ((0, 4_000), (1, 60), (2, 60)):
                await producer.send_many("hot", [b"%0400d" % number for number in range(count)], partition=partition)
        async with (
            Consumer("hot", bootstrap_servers=address, auto_offset_reset="earliest", fetch_max_bytes=4_000) as consumer,
            asyncio.timeout(30),
        ):
            while taken[1] < 60 or taken[2] < 60:
                for tp, records in (await consumer.getmany(timeout_ms=1_000)).items():
                    taken[tp.partition] += len(records)
    assert taken[0] < 400, "the others waited for the hot one"


def test_a_fetch_asks_in_the_order_of_turns_whatever_topics_the_partitions_are_of() -> None:
    turns = [("first", 0), ("second", 3), ("second", 1), ("first", 2)]
    asked = in_turn((topic, FetchPartition(index, 10 * at, 1_000)) for at, (topic, index) in enumerate(turns))
    assert [(topic.topic, ask.partition) for topic in asked for ask in topic.partitions] == turns
    assert [(ask.fetch_offset, ask.partition_max_bytes) for topic in asked for ask in topic.partitions] == [
        (0, 1_000),
        (10, 1_000),
        (20, 1_000),
        (30, 1_000),
    ]
    assert len(asked) == 3, "neighbours share the name of their topic"


async def test_what_was_fetched_is_handed_out_before_an_offset_out_of_range_is_reset(address: str) -> None:
    await create(address, trimmed=1)
    tp = TopicPartition("trimmed", 0)
    async with Producer(address, batch_size=1_000) as producer:
        await producer.send_many("trimmed", [b"%0100d" % number for number in range(2_000)], partition=0)
    async with (
        Admin(address) as admin,
        Consumer(bootstrap_servers=address, auto_offset_reset="earliest", max_partition_fetch_bytes=10_000) as consumer,
    ):
        consumer.assign([tp])
        numbers = await take(consumer, 1)
        await until(lambda: buffered(consumer)[0] >= 10_000)
        await admin.delete_records({tp: 1_500})
        with structlog.testing.capture_logs() as logs:
            while numbers[-1] < 1_500:
                numbers += await take(consumer, 1)
                await asyncio.sleep(0.001)  # the fetcher asks again as soon as there is room
        (told,) = [line for line in logs if line["event"] == "offset_out_of_range"]
    assert numbers == [*range(told["wanted"]), 1_500]
    assert told["skipped"] == 1_500 - told["wanted"]


async def test_a_fetch_that_the_daemon_refuses_for_good_is_told(address: str, monkeypatch: pytest.MonkeyPatch) -> None:
    await create(address, refused=1)

    async def refuse(*_: object, **__: object) -> None:
        raise InvalidRequestError("no such version")

    async with Consumer(bootstrap_servers=address, auto_offset_reset="earliest") as consumer:
        consumer.assign([TopicPartition("refused", 0)])
        await consumer.position(TopicPartition("refused", 0))
        monkeypatch.setattr(Connection, "request", refuse)
        with pytest.raises(InvalidRequestError, match="no such version"):
            await take(consumer, 1)


async def test_the_daemon_shares_a_fetch_among_the_partitions_that_have_records(address: str) -> None:
    await create(address, shared=4)
    async with Producer(address, batch_size=2_000) as producer:
        for partition, count in ((0, 1_000), (1, 2), (2, 1_000)):
            await producer.send_many("shared", [b"%0400d" % number for number in range(count)], partition=partition)
    cluster = Cluster(address, client_id="fair")
    await cluster.start()
    try:
        await cluster.topic_partitions("shared")
        connection = await cluster.connection_to_leader(TopicPartition("shared", 0))
        asked = FetchTopic("shared", tuple(FetchPartition(partition, 0, 1_000_000) for partition in range(4)))
        response = await connection.request(FetchRequest(500, 1, 60_000, (asked,)), FetchResponse, timeout_s=10)
    finally:
        await cluster.close()
    sizes = {answer.partition_index: len(answer.records) for answer in response.responses[0].partitions}
    assert sizes[3] == 0
    assert 0 < sizes[1] < 2_000
    assert 15_000 < sizes[0] <= 20_000, "a third of it"
    assert 20_000 < sizes[2] <= 60_000 - sizes[0] - sizes[1], "what the small one left over is for those after it"


async def test_only_the_first_partition_may_make_an_answer_larger_than_was_asked_for(address: str) -> None:
    await create(address, bulky=2)
    async with Producer(address, batch_size=1_000_000) as producer:
        await producer.send_many("bulky", [b"x" * 300_000], partition=0)
        await producer.send_many("bulky", [b"x" * 900_000], partition=1)
    cluster = Cluster(address, client_id="bulky")
    await cluster.start()
    try:
        await cluster.topic_partitions("bulky")
        connection = await cluster.connection_to_leader(TopicPartition("bulky", 0))
        for order, max_bytes, expected in (
            ((0, 1), 1_000_000, {0: 300_000, 1: 0}),
            ((1, 0), 1_000_000, {1: 900_000, 0: 0}),
            ((1, 0), 500_000, {1: 900_000, 0: 0}),
            ((0, 1), 1_300_000, {0: 300_000, 1: 900_000}),
        ):
            asked = FetchTopic("bulky", tuple(FetchPartition(partition, 0, 1_000_000) for partition in order))
            response = await connection.request(FetchRequest(500, 1, max_bytes, (asked,)), FetchResponse, timeout_s=10)
            sizes = {answer.partition_index: len(answer.records) for answer in response.responses[0].partitions}
            assert {partition: size // 1_000 * 1_000 for partition, size in sizes.items()} == expected
    finally:
        await cluster.close()


async def test_a_fetch_waits_for_fetch_min_bytes_but_not_beyond_its_time(address: str) -> None:
    await create(address, sparse=1)
    tp = TopicPartition("sparse", 0)
    async with Consumer(bootstrap_servers=address, fetch_min_bytes=100_000, fetch_max_wait_ms=600) as consumer:
        consumer.assign([tp])
        consumer.seek(tp, 0)
        loop = asyncio.get_running_loop()
        began_s = loop.time()
        await fill(address, "sparse", [1])
        assert await take(consumer, 1) == [1]
        assert loop.time() - began_s > 0.3
        async with Producer(address) as producer:
            await producer.send_many("sparse", [b"2" * 200_000], partition=0)
        assert len(await consumer.getmany(timeout_ms=5_000)) == 1


async def test_a_program_that_does_not_poll_holds_no_more_than_it_may_and_one_that_wants_the_rest_gets_it(
    address: str,
) -> None:
    await create(address, heavy=40)
    tps = [TopicPartition("heavy", partition) for partition in range(40)]
    async with Producer(address, batch_size=100_000) as producer:
        for tp in tps:
            await producer.send_many("heavy", [b"%d" % tp.partition * 10_000] * 10, partition=tp.partition)
    async with (
        Consumer("heavy", bootstrap_servers=address, auto_offset_reset="earliest", fetch_max_bytes=500_000) as consumer,
        asyncio.timeout(20),
    ):
        await until(lambda: sum(buffered(consumer).values()) >= 400_000)
        await asyncio.sleep(0.7)  # longer than a long poll
        assert sum(buffered(consumer).values()) < 1_200_000, "not an answer for each of them"
        empty = [tp for tp in tps if not buffered(consumer)[tp.partition]]
        for tp in empty[-3:]:
            assert [(await consumer.getone(tp)).partition for _ in range(10)] == [tp.partition] * 10
        for _ in range(370):
            await consumer.getone()


@pytest.mark.parametrize("segment_bytes", [64 * 1024 * 1024, 100_000], ids=["one segment", "many segments"])
async def test_what_is_there_is_not_held_back_for_bytes_that_the_answer_has_no_place_for(segment_bytes: int) -> None:
    async with Coordinator(segment_bytes=segment_bytes) as coordinator:
        address = coordinator.address
        await create(address, backlog=1)
        async with Producer(address, batch_size=50_000) as producer:
            await producer.send_many("backlog", [b"%01000d" % number for number in range(5_000)], partition=0)
        async with (
            Consumer(
                "backlog",
                bootstrap_servers=address,
                auto_offset_reset="earliest",
                fetch_min_bytes=2_000_000,
                fetch_max_wait_ms=25_000,
            ) as consumer,
            asyncio.timeout(20),
        ):
            assert await take(consumer, 2_500) == list(range(2_500))


async def test_partitions_at_their_end_are_not_asked_about_with_each_fetch_of_one_that_is_behind(
    address: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    await create(address, wide=200)
    async with Producer(address, batch_size=5_000) as producer:
        await producer.send_many("wide", [b"%01000d" % number for number in range(1_000)], partition=7)
    asked = 0
    request = Connection.request

    async def counted(self: Connection, sent: Request, *args: Any, **kwargs: Any) -> Any:
        nonlocal asked
        if isinstance(sent, FetchRequest):
            asked += sum(len(topic.partitions) for topic in sent.topics)
        return await request(self, sent, *args, **kwargs)

    monkeypatch.setattr(Connection, "request", counted)
    async with Consumer(
        "wide", bootstrap_servers=address, auto_offset_reset="earliest", max_partition_fetch_bytes=10_000
    ) as consumer:
        assert await take(consumer, 1_000) == list(range(1_000))
    assert asked < 4_000, "a hundred fetches of the one, and a few of all"


@asynccontextmanager
async def slow_line(upstream_port: list[int], bytes_per_s: int) -> AsyncIterator[int]:
    """Passes everything on to the one port in ``upstream_port``, answers so many bytes a second; yields its own port."""
    tasks: set[asyncio.Task[None]] = set()

    async def pass_on(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, rate: int | None) -> None:
        piece = 65_536 if rate is None else rate // 50
        try:
            while data := await reader.read(piece):
                writer.write(data)
                await writer.drain()
                if rate is not None:
                    await asyncio.sleep(len(data) / rate)
        finally:
            writer.close()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        upstream_reader, upstream = await asyncio.open_connection("127.0.0.1", *upstream_port)
        for pair, rate in (((reader, upstream), None), ((upstream_reader, writer), bytes_per_s)):
            tasks.add(asyncio.create_task(pass_on(*pair, rate)))

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    try:
        yield server.sockets[0].getsockname()[1]
    finally:
        server.close()
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


async def test_an_answer_that_takes_longer_than_any_other_is_taken_in_over_a_slow_line(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(fetcher_module, "_ANSWER_MARGIN_S", 0.3)
    upstream_port: list[int] = []
    async with (
        slow_line(upstream_port, 400_000) as port,
        Coordinator(advertised_host="127.0.0.1", advertised_port=port) as coordinator,
    ):
        upstream_port.append(int(coordinator.address.rpartition(":")[2]))
        await create(coordinator.address, distant=8)
        async with Producer(coordinator.address) as producer:
            for partition in range(8):
                await producer.send_many("distant", [b"x" * 1_000] * 100, partition=partition)
        async with (
            Consumer(
                "distant", bootstrap_servers=coordinator.address, auto_offset_reset="earliest", fetch_max_wait_ms=100
            ) as consumer,
            asyncio.timeout(20),
        ):
            count = 0
            while count < 800:
                count += sum(map(len, (await consumer.getmany(timeout_ms=1_000)).values()))
