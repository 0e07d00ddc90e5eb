"""How much a micro-batch takes: limits spread over partitions, AvailableNow and what it leaves to the next run."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Sequence
from typing import Any

import pytest

from client import Producer, TopicPartition
from client.spark.positions import Positions
from tests.daemon_process import DaemonProcess
from tests.integration.spark.calls import Query, administer, numbers, prepare, run
from tests.integration.spark.test_exactly_once import decided


@pytest.fixture(scope="module")
def address(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    with DaemonProcess(tmp_path_factory.mktemp("daemon") / "data") as daemon:
        yield daemon.address


@pytest.fixture
def topic(request: pytest.FixtureRequest) -> str:
    return f"t{abs(hash(request.node.name))}"


def fill(address: str, topic: str, sizes: Sequence[int], first: int = 0) -> None:
    """So many records into each partition, numbered through."""

    async def work() -> None:
        number = first
        async with Producer(address) as producer:
            for partition, size in enumerate(sizes):
                values = [b"%d" % each for each in range(number, number + size)]
                number += size
                await producer.send_many(topic, values, partition=partition)

    run(work())


def taken(before: dict[str, Any], after: dict[str, Any], topic: str) -> list[int]:
    """How many offsets each partition gave."""
    start, end = Positions.from_json(before).offsets, Positions.from_json(after).offsets
    return [end[at] - start.get(at, 0) for at in sorted(end) if at.topic == topic]


def test_a_large_backlog_comes_in_bounded_batches_to_which_each_partition_gives_its_part(
    address: str, topic: str
) -> None:
    sizes = (9000, 900, 90, 9, 0, 1)
    prepare(address, {topic: len(sizes)})
    fill(address, topic, sizes)
    query = Query(address, subscribe=topic, startingOffsets="earliest", maxOffsetsPerTrigger="500")
    found: list[int] = []
    batches: list[list[int]] = []
    while True:
        before = query.at
        table = query.batch()
        if table is None:
            break
        batches.append(taken(before, query.at, topic))
        assert table.num_rows == sum(batches[-1])
        found += numbers(table)
    assert sorted(found) == list(range(sum(sizes)))
    assert all(sum(batch) <= 500 + len(sizes) for batch in batches)
    assert len(batches) <= 22
    assert batches[0] == [450, 45, 4, 1, 0, 1], "in proportion, and one at least"
    assert all(batch[0] > 0 and batch[1] > 0 for batch in batches[:19]), "no partition is done long before the others"
    query.reader.stop()


def test_available_now_leaves_what_comes_later_to_the_next_run(address: str, topic: str) -> None:
    prepare(address, {topic: 2})
    fill(address, topic, (300, 100))
    pattern: Any = {"subscribePattern": f"{topic}.*", "startingOffsets": "earliest", "maxOffsetsPerTrigger": "120"}
    query = Query(address, **pattern)
    query.reader.prepareForTriggerAvailableNow()
    first = query.batch()
    assert first is not None
    assert 118 <= first.num_rows <= 122
    fill(address, topic, (50, 0), first=400)
    administer(address, lambda admin: admin.create_partitions({topic: 3}))
    prepare(address, {f"{topic}-more": 1})
    fill(address, f"{topic}-more", (7,), first=450)
    assert sorted(numbers(first) + query.everything()) == list(range(400))
    assert query.batch() is None
    query.reader.stop()
    again = Query(address, query.at, **pattern)
    again.reader.prepareForTriggerAvailableNow()
    assert again.everything() == list(range(400, 457))
    again.reader.stop()


def test_a_run_of_available_now_that_was_interrupted_is_taken_up_by_the_next_with_a_new_end(
    address: str, topic: str
) -> None:
    prepare(address, {topic: 2})
    fill(address, topic, (200, 200))
    options: Any = {"subscribe": topic, "startingOffsets": "earliest", "maxOffsetsPerTrigger": "100"}
    query = Query(address, **options)
    query.reader.prepareForTriggerAvailableNow()
    table = query.batch()
    assert table is not None
    start, end = query.at, query.plan()  # in the checkpoint, and the driver dies
    query.reader.stop()
    fill(address, topic, (10, 10), first=400)
    again = Query(address, start, **options)
    again.reader.prepareForTriggerAvailableNow()
    assert taken(start, end, topic) == [50, 50]
    ranges = [part.range for part in again.reader.partitions(start, end)]
    assert [(part.start, part.end) for part in ranges] == [(50, 100), (50, 100)], "the batch is repeated as planned"
    again.at = end
    assert len(again.everything()) == 420 - 200
    again.reader.stop()


def test_available_now_ends_where_a_transaction_is_open_and_does_not_wait_for_it(address: str, topic: str) -> None:
    prepare(address, {topic: 1})
    fill(address, topic, (30,))

    async def work() -> None:
        async with Producer(address, transactional_id=topic) as producer, producer.transaction() as transaction:
            await transaction.send(topic, b"30")
            await producer.flush()
            await asyncio.to_thread(available_now_reads, address, topic, 30)

    run(work())
    decided(address)
    available_now_reads(address, topic, 31)


def available_now_reads(address: str, topic: str, count: int) -> None:
    query = Query(address, subscribe=topic, startingOffsets="earliest", maxOffsetsPerTrigger="20")
    query.reader.prepareForTriggerAvailableNow()
    assert query.everything() == list(range(count))
    query.reader.stop()


def test_records_that_retention_takes_meanwhile_end_no_run_that_may_lose_them(address: str, topic: str) -> None:
    prepare(address, {topic: 1})
    fill(address, topic, (300,))
    options: Any = {"subscribe": topic, "startingOffsets": "earliest", "failOnDataLoss": "false"}
    query = Query(address, **options, maxOffsetsPerTrigger="100")
    query.reader.prepareForTriggerAvailableNow()
    assert query.batch() is not None
    fill(address, topic, (100,), first=300)
    administer(address, lambda admin: admin.delete_records({TopicPartition(topic, 0): 350}))
    assert query.everything() == [], "what is left of it came later"
    query.reader.stop()
    again = Query(address, query.at, **options)
    assert again.everything() == list(range(350, 400))
    again.reader.stop()


def test_a_minimum_and_a_maximum_go_together(address: str, topic: str) -> None:
    prepare(address, {topic: 1})
    fill(address, topic, (90,))
    limits: Any = {"minOffsetsPerTrigger": "100", "maxOffsetsPerTrigger": "150", "maxTriggerDelay": "10m"}
    query = Query(address, subscribe=topic, startingOffsets="earliest", **limits)
    now = [0.0]
    query.reader._clock = lambda: now[0]
    assert query.batch() is None
    fill(address, topic, (200,), first=90)
    table = query.batch()
    assert table is not None
    assert table.num_rows == 150, "the maximum, of 290"
    table = query.batch()
    assert table is not None
    assert table.num_rows == 140, "more than the minimum"
    fill(address, topic, (5,), first=290)
    now[0] = 599.0
    assert query.batch() is None
    now[0] = 600.0
    table = query.batch()
    assert table is not None
    assert table.num_rows == 5, "the delay is over"
    query.reader.stop()
