"""Readers of what is committed, and all readers of logs that hold markers: rows, columns and Spark's tasks."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from dataclasses import dataclass, field

import pytest

from client import Admin, Consumer, TopicPartition
from client.errors import OffsetOutOfRangeError
from client.spark.source import CohortDataSource
from client.transport.cluster import Cluster
from coordinator import Coordinator
from coordinator.log.partition import PartitionLog
from protocol.errors import ErrorCode
from protocol.messages.records import (
    LATEST_TIMESTAMP,
    READ_COMMITTED,
    READ_UNCOMMITTED,
    FetchedPartition,
    FetchPartition,
    FetchRequest,
    FetchResponse,
    FetchTopic,
    ListedOffset,
    ListOffsetsPartition,
    ListOffsetsRequest,
    ListOffsetsResponse,
    ListOffsetsTopic,
)
from protocol.record_batch import encode_batch, iter_batches, read_header
from tests.coordinator.log.transactional import transactional
from tests.integration.consuming import QUICK, create
from tests.integration.spark.calls import numbers, schema, tasks

TP = TopicPartition("t", 0)


@dataclass
class Partition:
    """A partition of a running daemon, written to without its clients: transactions open and end as a test wants."""

    coordinator: Coordinator
    cluster: Cluster
    log: PartitionLog
    sequences: dict[int, int] = field(default_factory=dict)

    async def write(self, *values: bytes, producer_id: int = -1) -> None:
        times = [self.log.end_offset + number for number in range(len(values))]
        if producer_id < 0:
            batch = encode_batch(values, timestamps_ms=times)
        else:
            sequence = self.sequences.get(producer_id, 0)
            batch = transactional([b"k"] * len(values), values, times, producer_id, sequence)
            self.sequences[producer_id] = sequence + len(values)
        self.log.append(batch, read_header(batch))
        await self.log.flush()

    async def end(self, producer_id: int, committed: bool) -> None:
        self.log.end_transactions([(producer_id, 0, committed)], 0, 0)
        self.sequences.pop(producer_id)
        await self.log.flush()

    async def fetch(
        self, offset: int, isolation_level: int = READ_COMMITTED, *, min_bytes: int = 1, max_wait_ms: int = 0
    ) -> FetchedPartition:
        asked = FetchTopic("t", (FetchPartition(0, offset, 1 << 20),))
        request = FetchRequest(max_wait_ms, min_bytes, 1 << 20, (asked,), isolation_level)
        connection = await self.cluster.connection_to_leader(TP)
        answer = await connection.request(request, FetchResponse, timeout_s=20)
        ((found,),) = (topic.partitions for topic in answer.responses)
        assert found.error_code == ErrorCode.NONE, found
        return found

    async def list(self, timestamp: int, isolation_level: int = READ_COMMITTED) -> ListedOffset:
        asked = ListOffsetsTopic("t", (ListOffsetsPartition(0, timestamp),))
        connection = await self.cluster.connection_to_leader(TP)
        request = ListOffsetsRequest((asked,), isolation_level)
        answer = await connection.request(request, ListOffsetsResponse, timeout_s=20)
        return answer.topics[0].partitions[0]


@pytest.fixture
async def partition() -> AsyncIterator[Partition]:
    async with Coordinator() as coordinator:
        await create(coordinator.address, t=1)
        assert coordinator._daemon is not None
        logs = coordinator._daemon._partitions
        assert logs is not None
        cluster = Cluster(coordinator.address, client_id="reader")
        await cluster.start()
        await cluster.topic_partitions("t")
        try:
            yield Partition(coordinator, cluster, logs.find(logs._catalog.topic("t"), 0))
        finally:
            await cluster.close()


def spans(found: FetchedPartition) -> list[tuple[int, int, int]]:
    """Base offset, next offset and records of each batch."""
    return [(header.base_offset, header.next_offset, header.record_count) for _, header in iter_batches(found.records)]


async def test_answers_end_at_the_last_stable_offset_and_name_it(partition: Partition) -> None:
    await partition.write(b"0")
    await partition.write(b"1", b"2", producer_id=5)
    await partition.write(b"3")
    found = await partition.fetch(0)
    assert (spans(found), found.last_stable_offset, found.high_watermark) == ([(0, 1, 1)], 1, 4)
    found = await partition.fetch(0, READ_UNCOMMITTED)
    assert (spans(found), found.last_stable_offset) == ([(0, 1, 1), (1, 3, 2), (3, 4, 1)], 1)
    assert (await partition.list(LATEST_TIMESTAMP)).offset == 1
    assert (await partition.list(LATEST_TIMESTAMP, READ_UNCOMMITTED)).offset == 4
    assert (await partition.list(1)).offset == -1
    assert (await partition.list(1, READ_UNCOMMITTED)).offset == 1
    await partition.end(5, committed=False)
    assert spans(await partition.fetch(0)) == [(0, 1, 1), (1, 3, 0), (3, 4, 1), (4, 5, 0)]
    assert (await partition.list(LATEST_TIMESTAMP)).offset == 5
    assert (await partition.list(1)).offset == 3, "aborted records have no time"
    assert (await partition.list(4)).offset == -1, "neither has a marker"


@pytest.mark.parametrize("committed", [True, False])
@pytest.mark.parametrize("min_bytes", [1, 100_000])
async def test_a_long_poll_behind_the_last_stable_offset_waits_until_it_moves(
    partition: Partition, committed: bool, min_bytes: int
) -> None:
    await partition.write(b"0")
    for _ in range(3):
        await partition.write(b"x" * 50_000, producer_id=5)
    for offset in (1, 2, 4):  # none of them is out of range
        assert spans(await partition.fetch(offset, max_wait_ms=20, min_bytes=min_bytes)) == []
    waiting = asyncio.create_task(partition.fetch(1, max_wait_ms=15_000, min_bytes=min_bytes))
    behind = asyncio.create_task(partition.fetch(3, max_wait_ms=15_000))
    await asyncio.sleep(0.05)
    await partition.write(b"4")  # the high watermark alone is no reason
    await asyncio.sleep(0.05)
    assert not waiting.done()
    assert not behind.done()
    async with asyncio.timeout(12):
        await partition.end(5, committed)
        if committed:
            assert spans(await waiting) == [(1, 2, 1), (2, 3, 1), (3, 4, 1), (4, 5, 1), (5, 6, 1)]
            assert spans(await behind) == [(3, 4, 1), (4, 5, 1), (5, 6, 1)]
        else:
            assert spans(await waiting) == [(1, 4, 0), (4, 5, 1), (5, 6, 0)], "an answer, however few bytes are left"
            assert spans(await behind) == [(3, 4, 0), (4, 5, 1), (5, 6, 0)]


async def test_a_fetch_that_waits_for_bytes_does_not_read_again_what_is_undecided(
    partition: Partition, monkeypatch: pytest.MonkeyPatch
) -> None:
    reads, read = list[int](), partition.log.read

    async def counted(offset: int, max_bytes: int, committed: bool = False) -> bytes:
        reads.append(offset)
        return await read(offset, max_bytes, committed)

    monkeypatch.setattr(partition.log, "read", counted)
    for number in range(20):
        await partition.write(b"%d" % number)
    await partition.write(b"open", producer_id=5)
    for _ in range(30):
        await partition.write(b"x" * 500)
    found = await partition.fetch(0, min_bytes=20 * 120, max_wait_ms=600)  # more than lies below it
    assert len(spans(found)) == 20
    assert len(reads) <= 3, "one to find out how much there is, one at the end"


async def test_no_reader_sees_markers_or_what_is_aborted_and_positions_pass_them(partition: Partition) -> None:
    for number in range(0, 40, 4):
        await partition.write(b"%d" % number, b"%d" % (number + 1))
        await partition.write(b"%d" % (number + 2), b"%d" % (number + 3), producer_id=5)
        await partition.end(5, committed=number % 8 == 0)
    end = partition.log.end_offset
    assert end == 50
    all_numbers = list(range(40))
    kept = [number for number in all_numbers if number % 8 not in (6, 7)]
    address = partition.coordinator.address
    for isolation_level, expected in (("read_committed", kept), ("read_uncommitted", all_numbers)):
        for columns in (True, False):
            async with Consumer(
                bootstrap_servers=address,
                auto_offset_reset="earliest",
                isolation_level=isolation_level,  # type: ignore[arg-type]
            ) as consumer:
                consumer.assign([TP])
                found: list[int] = []
                async with asyncio.timeout(30):
                    while await consumer.position(TP) < end:
                        if columns:
                            parts = (await consumer.getmany_columns(timeout_ms=100)).values()
                            found += [int(value or b"") for taken in parts for part in taken for value in part.values()]
                        else:
                            rows = (await consumer.getmany(timeout_ms=100, max_records=3)).values()
                            found += [int(record.value or b"") for taken in rows for record in taken]
                assert found == expected
        for size in ("1", "10000000"):
            options = {"bootstrap.servers": address, "subscribe": "t", "fetch.max.bytes": size}
            source = CohortDataSource(options | {"isolation.level": isolation_level})

            def read(source: CohortDataSource = source) -> list[int]:
                reader = source.reader(schema("value"))
                return numbers(tasks(reader, reader.partitions()))

            assert await asyncio.to_thread(read) == expected


async def test_a_group_that_has_read_all_has_nothing_left_although_a_marker_is_last(partition: Partition) -> None:
    address = partition.coordinator.address
    await partition.write(b"0", b"1", producer_id=5)
    await partition.end(5, committed=True)
    await partition.write(b"2", producer_id=6)
    await partition.end(6, committed=False)
    async with Consumer("t", bootstrap_servers=address, group_id="g", **QUICK) as consumer:
        async with asyncio.timeout(30):
            taken = [int((await consumer.getone()).value) for _ in range(2)]
            while await consumer.position(TP) < 5:
                assert await consumer.getmany(timeout_ms=20) == {}
        await consumer.commit()
        committed = (await consumer.committed(TP))[TP]
        assert committed is not None
        assert committed.offset == 5
        assert (await consumer.end_offsets([TP]))[TP] == 5
    assert taken == [0, 1]


async def test_records_are_deleted_up_to_the_first_of_an_open_transaction(partition: Partition) -> None:
    await partition.write(b"0", b"1")
    await partition.write(b"2", producer_id=5)
    await partition.write(b"3")
    async with Admin(partition.coordinator.address) as admin:
        with pytest.raises(OffsetOutOfRangeError, match=r"producer 5 has a transaction open .* below offset 2 only"):
            await admin.delete_records({TP: 3})
        assert await admin.delete_records({TP: 1}) == {TP: 1}
        assert await admin.delete_records({TP: -1}) == {TP: 2}
        await partition.end(5, committed=True)
        assert await admin.delete_records({TP: -1}) == {TP: 5}


async def test_records_are_deleted_once_the_end_marker_of_their_transaction_arrives(partition: Partition) -> None:
    """Who is told that a transaction is committed may delete its records, though the marker is still on its way."""
    await partition.write(b"0", b"1", producer_id=5)
    async with Admin(partition.coordinator.address) as admin:
        deleting = asyncio.create_task(admin.delete_records({TP: 2}))
        await asyncio.sleep(0.2)
        await partition.end(5, committed=True)
        assert await deleting == {TP: 2}


async def test_all_records_are_those_of_a_transaction_too_whose_end_marker_is_on_its_way(partition: Partition) -> None:
    """-1 right after a commit was told deleted none of what was committed, and said that all was well."""
    await partition.write(b"0", b"1", producer_id=5)
    async with Admin(partition.coordinator.address) as admin:
        deleting = asyncio.create_task(admin.delete_records({TP: -1}))
        await asyncio.sleep(0.2)
        await partition.end(5, committed=True)
        assert await deleting == {TP: 2}
