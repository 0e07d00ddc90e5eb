"""Records through all pairs of writers and readers: each reader gets each record, whoever wrote it."""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, Final, Literal, NamedTuple

import aiokafka
import pytest
from aiokafka.errors import KafkaError

from client import Admin, Consumer, Producer, TopicPartition
from client.spark.source import CohortDataSource
from client.transport.cluster import Cluster
from coordinator.embedded import Coordinator
from protocol.columns import Headers
from protocol.kafka.conversion import largest_columns
from protocol.messages.records import FetchPartition, FetchRequest, FetchResponse, FetchTopic
from protocol.record_batch import Attributes, iter_batches
from tests.integration.spark.calls import schema, tasks
from tests.protocol.kafka.written import CODECS

TP: Final = TopicPartition("t", 0)
FIRST_MS: Final = 1_700_000_000_000


class Row(NamedTuple):
    """A record as every reader tells it."""

    offset: int
    timestamp_ms: int
    key: bytes | None
    value: bytes | None
    headers: Headers


def running(tmp_path: Path) -> Coordinator:
    return Coordinator(str(tmp_path / "data"), kafka_port=-1, flush="os", node_id=1)


@pytest.fixture
async def coordinator(tmp_path: Path) -> AsyncIterator[Coordinator]:
    async with running(tmp_path) as started:
        yield started


async def make(coordinator: Coordinator, **config: str) -> None:
    async with Admin(coordinator.address) as admin:
        await admin.create_topics({"t": 1}, config=config)


def drawn(seed: int, count: int) -> list[Row]:
    chance = random.Random(seed)
    rows: list[Row] = []
    for number in range(count):
        value = b"value-%d" % number * chance.randrange(1, 40)
        pairs: tuple[tuple[bytes | None, bytes | None], ...] = (
            (None, value),
            (b"", value),
            (b"key", None),
            (None, b""),
        )
        key, value_or_none = chance.choice(pairs)
        headers = chance.choice(((), (("name", b"value"), ("null", None), ("name", b""))))
        rows.append(Row(number, FIRST_MS + 1_000 * number + chance.randrange(900), key, value_or_none, headers))
    return rows


async def write_theirs(coordinator: Coordinator, rows: Sequence[Row], codec: str, *, idempotent: bool = True) -> None:
    compression = None if codec == "none" else codec
    async with aiokafka.AIOKafkaProducer(
        bootstrap_servers=coordinator.kafka_address,
        compression_type=compression,
        enable_idempotence=idempotent,
        linger_ms=20,
    ) as producer:
        sent = [await producer.send("t", row.value, row.key, 0, row.timestamp_ms, list(row.headers)) for row in rows]
        assert [(await future).offset for future in sent] == [row.offset for row in rows]


async def write_ours(
    coordinator: Coordinator, rows: Sequence[Row], compression: Literal["gzip", "zstd"] | None = None
) -> None:
    async with Producer(coordinator.address, compression=compression, linger_ms=20) as producer:
        sent = [
            await producer.send(
                "t", row.value, row.key, partition=0, timestamp_ms=row.timestamp_ms, headers=row.headers
            )
            for row in rows
        ]
        assert [(await future).offset for future in sent] == [row.offset for row in rows]


async def read_theirs(coordinator: Coordinator, end: int, **options: Any) -> list[Row]:
    found: list[Row] = []
    async with aiokafka.AIOKafkaConsumer(
        bootstrap_servers=coordinator.kafka_address, auto_offset_reset="earliest", **options
    ) as consumer:
        consumer.assign([aiokafka.TopicPartition("t", 0)])
        async with asyncio.timeout(30):
            while await consumer.position(aiokafka.TopicPartition("t", 0)) < end:
                for records in (await consumer.getmany(timeout_ms=200)).values():
                    found += [
                        Row(each.offset, each.timestamp, each.key, each.value, tuple(each.headers)) for each in records
                    ]
    return found


async def read_ours(coordinator: Coordinator, end: int, *, columns: bool = False, **options: Any) -> list[Row]:
    found: list[Row] = []
    async with Consumer(bootstrap_servers=coordinator.address, auto_offset_reset="earliest", **options) as consumer:
        consumer.assign([TP])
        async with asyncio.timeout(30):
            while await consumer.position(TP) < end:
                if columns:
                    for parts in (await consumer.getmany_columns(timeout_ms=200)).values():
                        for part in parts:
                            assert part.to_arrow().num_rows == len(part)
                            found += [
                                Row(each.offset, each.timestamp_ms, each.key, each.value, each.headers)
                                for each in part.records()
                            ]
                else:
                    for records in (await consumer.getmany(timeout_ms=200)).values():
                        found += [
                            Row(each.offset, each.timestamp_ms, each.key, each.value, each.headers) for each in records
                        ]
    return found


async def read_by_spark(coordinator: Coordinator) -> list[tuple[int, bytes | None, bytes | None]]:
    """Offset, key and value, as a task of Spark reads them."""

    def read() -> Any:
        source = CohortDataSource({"bootstrap.servers": coordinator.address, "subscribe": "t"})
        reader = source.reader(schema("offset", "key", "value"))
        return tasks(reader, reader.partitions()).to_pylist()

    rows = await asyncio.to_thread(read)
    return sorted(((row["offset"], row["key"], row["value"]) for row in rows), key=lambda row: row[0])


async def fetched(coordinator: Coordinator, *, kafka_batches: bool, max_bytes: int = 1 << 20) -> bytes:
    """What a client of ours gets that says it reads Kafka's batches, or is too old to say so."""
    cluster = Cluster(coordinator.address, client_id="raw")
    await cluster.start()
    try:
        await cluster.topic_partitions("t")
        connection = await cluster.connection_to_leader(TP)
        asked = FetchTopic("t", (FetchPartition(0, 0, max_bytes),))
        request = FetchRequest(1_000, 1, max_bytes, (asked,), kafka_batches=kafka_batches)
        answer = await connection.request(request, FetchResponse, timeout_s=20)
        ((found,),) = (topic.partitions for topic in answer.responses)
        assert not found.error_code, found
        return found.records
    finally:
        await cluster.close()


async def assert_all_read(coordinator: Coordinator, rows: Sequence[Row]) -> None:
    end = rows[-1].offset + 1
    assert await read_theirs(coordinator, end) == rows
    assert await read_ours(coordinator, end) == rows
    assert await read_ours(coordinator, end, columns=True) == rows
    assert await read_by_spark(coordinator) == [(row.offset, row.key, row.value) for row in rows]


@pytest.mark.parametrize("codec", CODECS)
async def test_every_reader_gets_what_both_kinds_wrote_again_after_a_restart(tmp_path: Path, codec: str) -> None:
    rows = drawn(1, 120)
    async with running(tmp_path) as coordinator:
        await make(coordinator)
        await write_theirs(coordinator, rows[:40], codec)
        await write_ours(coordinator, rows[40:80], codec if codec in ("gzip", "zstd") else None)  # type: ignore[arg-type]
        await write_theirs(coordinator, rows[80:], codec, idempotent=False)
        await assert_all_read(coordinator, rows)
        data = await fetched(coordinator, kafka_batches=True)
        assert {bool(header.attributes & Attributes.KAFKA_BODY) for _, header in iter_batches(data)} == {True, False}
    async with running(tmp_path) as again:
        await assert_all_read(again, rows)


async def test_times_are_looked_up_alike(coordinator: Coordinator) -> None:
    await make(coordinator)
    rows = drawn(2, 60)
    await write_theirs(coordinator, rows[:30], "lz4")
    await write_ours(coordinator, rows[30:])
    theirs = aiokafka.AIOKafkaConsumer(bootstrap_servers=coordinator.kafka_address)
    async with theirs, Consumer(bootstrap_servers=coordinator.address) as ours:
        for time_ms in (0, rows[7].timestamp_ms, rows[7].timestamp_ms + 1, rows[35].timestamp_ms, 2**50):
            expected = next((row for row in rows if row.timestamp_ms >= time_ms), None)
            told = (await theirs.offsets_for_times({aiokafka.TopicPartition("t", 0): time_ms})).popitem()[1]
            found = (await ours.offsets_for_times({TP: time_ms}))[TP]
            if expected is None:
                assert (told, found) == (None, None)
            else:
                assert told is not None
                assert found is not None
                assert (told.offset, told.timestamp) == (expected.offset, expected.timestamp_ms)
                assert (found.offset, found.timestamp_ms) == (expected.offset, expected.timestamp_ms)


async def test_the_time_of_the_append_is_what_all_readers_are_told(coordinator: Coordinator) -> None:
    await make(coordinator, **{"message.timestamp.type": "LogAppendTime"})
    rows = drawn(3, 40)
    await write_theirs(coordinator, rows[:20], "zstd")
    await write_ours(coordinator, rows[20:])
    told = await read_ours(coordinator, 40)
    assert await read_theirs(coordinator, 40) == told == await read_ours(coordinator, 40, columns=True)
    assert all(row.timestamp_ms > FIRST_MS + 10**10 for row in told)
    assert [row._replace(timestamp_ms=0) for row in told] == [row._replace(timestamp_ms=0) for row in rows]


async def test_a_client_that_does_not_know_kafkas_batches_gets_columns(coordinator: Coordinator) -> None:
    await make(coordinator)
    rows = [Row(number, FIRST_MS, None, b"v" * 1000, ()) for number in range(400)]
    await write_theirs(coordinator, rows[:200], "zstd")
    await write_ours(coordinator, rows[200:])
    data = await fetched(coordinator, kafka_batches=False, max_bytes=1 << 22)
    headers = [header for _, header in iter_batches(data)]
    assert not any(header.attributes & Attributes.KAFKA_BODY for header in headers)
    assert sum(header.record_count for header in headers) == 400
    bounded = await fetched(coordinator, kafka_batches=False, max_bytes=50_000)
    first = next(header for _, header in iter_batches(bounded))
    assert len(bounded) <= max(50_000, first.length), "columns of what was compressed may be many times as large"
    assert 0 < sum(header.record_count for _, header in iter_batches(bounded)) < 400


async def test_a_large_batch_of_ours_is_converted_beside_the_loop(coordinator: Coordinator) -> None:
    await make(coordinator)
    rows = [Row(number, FIRST_MS, None, b"v" * 1000, ()) for number in range(1500)]
    async with Producer(coordinator.address, compression="gzip", linger_ms=1000, batch_size=4 << 20) as producer:
        await producer.send_many("t", [row.value for row in rows], partition=0, timestamp_ms=FIRST_MS)
    data = await fetched(coordinator, kafka_batches=True, max_bytes=1 << 22)
    assert max(header.body_length for _, header in iter_batches(data)) == largest_columns(data) > 512 * 1024
    assert await read_theirs(coordinator, 1500) == rows


async def test_transactions_of_ours_are_what_kafkas_readers_take_them_for(coordinator: Coordinator) -> None:
    await make(coordinator)
    async with Producer(coordinator.address, transactional_id="tx", linger_ms=0) as producer:
        async with producer.transaction():
            await producer.send("t", b"committed", partition=0, timestamp_ms=FIRST_MS)
        with suppress(ZeroDivisionError):
            async with producer.transaction():
                await (await producer.send("t", b"aborted", partition=0, timestamp_ms=FIRST_MS))
                raise ZeroDivisionError
        async with producer.transaction():
            await producer.send("t", b"again", partition=0, timestamp_ms=FIRST_MS)
    await write_theirs(coordinator, [Row(6, FIRST_MS, None, b"plain", ())], "none")
    committed = [row.value for row in await read_theirs(coordinator, 7, isolation_level="read_committed")]
    assert committed == [b"committed", b"again", b"plain"]
    everything = [row.value for row in await read_theirs(coordinator, 7, isolation_level="read_uncommitted")]
    assert everything == [b"committed", b"aborted", b"again", b"plain"]


async def test_a_compacted_topic_refuses_a_kafka_record_without_a_key_and_keeps_the_last_of_each(
    coordinator: Coordinator,
) -> None:
    await make(coordinator, **{"cleanup.policy": "compact"})
    async with aiokafka.AIOKafkaProducer(bootstrap_servers=coordinator.kafka_address) as producer:
        with pytest.raises(KafkaError):  # which has no class for INVALID_RECORD
            await producer.send_and_wait("t", b"no key")
        await producer.send_and_wait("t", b"v", b"key")
    assert [row.value for row in await read_ours(coordinator, 1)] == [b"v"]
