"""Streams: positions that survive a restart, limits, data loss, and the group that a query owns."""

from __future__ import annotations

import asyncio
import contextlib
import json
import signal
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path
from time import perf_counter, sleep
from typing import Any

import pytest
from pyspark.sql.streaming.datasource import ReadAllAvailable

from client import (
    Admin,
    CohortError,
    Consumer,
    InconsistentGroupProtocolError,
    Producer,
    RequestTimedOutError,
    TopicPartition,
)
from client.spark.driver import _THREAD
from client.spark.errors import CheckpointError, DataLossError, OptionsError, QueryFencedError
from client.spark.source import CohortDataSource
from client.spark.stream import CohortStreamReader
from client.transport.background_loop import SHARED_THREAD
from tests.daemon_process import DaemonProcess
from tests.integration.spark.calls import Query, administer, numbers, prepare, produce, run, schema, tasks

BOUNDED_S = 40
"""Far from what a request may take that nothing bounds but its own timeout of a minute."""


@pytest.fixture(scope="module")
def address(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    with DaemonProcess(tmp_path_factory.mktemp("daemon") / "data") as daemon:
        yield daemon.address


@pytest.fixture
def topic(address: str, request: pytest.FixtureRequest) -> str:
    """A topic of its own with two partitions and the numbers 0 to 999."""
    name: str = request.node.name.replace("[", "-").replace("]", "")[:100]
    prepare(address, {name: 2}, {name: 1000})
    return name


def sizes(offset: dict[str, Any]) -> int:
    return sum(number for topic, parts in offset.items() if topic != "$cohort" for number in parts.values())


def committed(address: str, group: str) -> dict[int, int]:
    found = administer(address, lambda admin: admin.list_offsets(group))
    return {partition.partition: offset.offset for partition, offset in found.items()}


def test_a_query_goes_on_from_its_checkpoint_with_the_same_text(address: str, topic: str) -> None:
    query = Query(address, subscribe=topic, startingOffsets="earliest")
    assert query.everything() == list(range(1000))
    assert json.dumps(query.plan()) == json.dumps(query.at)
    query.reader.stop()
    run(produce(address, topic, range(1000, 1100)))
    again = Query(address, query.at, subscribe=topic)
    assert again.everything() == list(range(1000, 1100))
    again.reader.stop()


def test_a_stream_begins_at_the_end_unless_told_otherwise_and_its_begin_stays(address: str, topic: str) -> None:
    query = Query(address, subscribe=topic)
    run(produce(address, topic, range(1000, 1010)))
    assert query.reader.initialOffset() == query.at
    assert query.everything() == list(range(1000, 1010))
    query.reader.stop()


def test_a_batch_that_is_repeated_reads_the_same(address: str, topic: str) -> None:
    query = Query(address, subscribe=topic, startingOffsets="earliest", maxOffsetsPerTrigger="300", minPartitions="5")
    start, end = query.at, query.plan()
    first = [tuple(one.range) for one in query.reader.partitions(start, end)]
    query.reader.stop()
    run(produce(address, topic, range(1000, 1010)))
    replayed = Query(address, start, subscribe=topic, minPartitions="5")
    assert [tuple(one.range) for one in replayed.reader.partitions(start, end)] == first
    replayed.reader.stop()


@pytest.mark.parametrize("group", [{}, {"group_id": "anew"}])
@pytest.mark.parametrize("records", [0, 50])
def test_a_first_batch_that_is_repeated_begins_where_it_did_though_latest_is_elsewhere_by_now(
    address: str, topic: str, group: dict[str, Any], records: int
) -> None:
    """Spark keeps where a batch ends, and asks again for the initial offset when it repeats the first one."""
    query = Query(address, subscribe=topic, **group)
    run(produce(address, topic, range(1000, 1000 + records)))
    start, end = query.at, query.plan()
    assert numbers(tasks(query.reader, query.reader.partitions(start, end))) == [*range(1000, 1000 + records)]
    query.reader.stop()
    run(produce(address, topic, range(2000, 2100)))
    again = Query(address, subscribe=topic, **group)
    assert sizes(again.at) == 1100 + records
    assert numbers(tasks(again.reader, again.reader.partitions(again.at, end))) == [*range(1000, 1000 + records)]
    again.at = end
    assert again.everything() == list(range(2000, 2100))
    again.reader.stop()


@pytest.mark.parametrize("lenient", ["false", "true"])
def test_a_first_batch_that_is_repeated_when_its_records_are_gone_says_so(
    address: str, topic: str, lenient: str
) -> None:
    options: Any = {"subscribe": topic, "startingOffsets": "earliest", "group_id": f"g-{topic}"}
    query = Query(address, **options, maxOffsetsPerTrigger="500")
    end = query.plan()
    query.reader.partitions(query.at, end)
    query.reader.stop()
    behind = {TopicPartition(topic, number): end[topic][str(number)] + 10 for number in (0, 1)}
    administer(address, lambda admin: admin.delete_records(behind))
    again = Query(address, **options, failOnDataLoss="false" if lenient == "true" else "true")
    parts = again.reader.partitions(again.at, end)
    if lenient == "false":
        with pytest.raises(DataLossError, match="begins at offset"):
            tasks(again.reader, parts)
    else:
        assert numbers(tasks(again.reader, parts)) == []
        again.at = end
        assert len(again.everything()) == 1000 - sum(behind.values())
    again.reader.stop()


def test_partitions_that_are_new_begin_a_repeated_batch_where_they_did(address: str, topic: str) -> None:
    query = Query(address, subscribe=topic, startingOffsets="earliest")
    query.everything()
    administer(address, lambda admin: admin.create_partitions({topic: 3}))
    run(produce(address, topic, range(2000, 2100)))
    start, end = query.at, query.plan()
    first = [tuple(one.range) for one in query.reader.partitions(start, end)]
    query.reader.stop()
    administer(address, lambda admin: admin.delete_records({TopicPartition(topic, 2): 5}))
    again = Query(address, start, subscribe=topic)
    parts = again.reader.partitions(start, end)
    assert [tuple(one.range) for one in parts] == first
    with pytest.raises(DataLossError, match="begins at offset 5"):
        tasks(again.reader, parts)
    again.reader.stop()


def test_limits_of_a_trigger(address: str, topic: str) -> None:
    query = Query(address, subscribe=topic, startingOffsets="earliest", maxOffsetsPerTrigger="100")
    assert 95 <= sizes(query.plan()) <= 102
    assert sizes(query.reader.latestOffset(query.at, ReadAllAvailable())) == 1000
    assert sizes(query.reader.reportLatestOffset() or {}) == 1000
    query.reader.stop()
    query = Query(address, subscribe=topic, startingOffsets="earliest", maxBytesPerTrigger="5000")
    assert 50 <= sizes(query.plan()) <= 600
    assert query.everything() == list(range(1000))
    query.reader.stop()


def test_a_minimum_is_waited_for_until_the_delay_is_over(address: str, topic: str) -> None:
    options: Any = {
        "subscribe": topic,
        "startingOffsets": "earliest",
        "minOffsetsPerTrigger": "1001",
        "maxTriggerDelay": "60s",
    }
    query = Query(address, **options)
    now = [0.0]
    query.reader._clock = lambda: now[0]
    assert query.batch() is None
    now[0] = 59.0
    assert query.batch() is None
    now[0] = 61.0
    table = query.batch()
    assert table is not None
    assert len(numbers(table)) == 1000
    run(produce(address, topic, range(1000, 2001)))
    assert query.everything() == list(range(1000, 2001))
    query.reader.stop()


def test_available_now_reads_what_is_there_when_it_begins(address: str, topic: str) -> None:
    query = Query(
        address, subscribe=topic, startingOffsets="earliest", maxOffsetsPerTrigger="400", minOffsetsPerTrigger="300"
    )
    query.reader.prepareForTriggerAvailableNow()
    run(produce(address, topic, range(1000, 1100)))
    assert query.everything() == list(range(1000))
    query.reader.stop()


@pytest.mark.parametrize("limit", [{}, {"maxOffsetsPerTrigger": "400"}])
def test_available_now_gives_its_group_up_when_all_is_read(address: str, topic: str, limit: dict[str, Any]) -> None:
    """Spark may end the process of the source without a word then."""
    query = Query(address, subscribe=topic, startingOffsets="earliest", group_id=f"g-{topic}", **limit)
    query.reader.prepareForTriggerAvailableNow()
    assert query.everything() == list(range(1000))
    group = administer(address, lambda admin: admin.describe_groups(f"g-{topic}"))[f"g-{topic}"]
    assert group.state == "Empty"
    assert sum(committed(address, f"g-{topic}").values()) == 1000
    query.reader.stop()


def test_new_partitions_and_topics_are_read_from_their_start(address: str, topic: str) -> None:
    query = Query(address, subscribePattern=f"{topic}.*")
    assert query.everything() == []
    administer(address, lambda admin: admin.create_partitions({topic: 3}))
    prepare(address, {f"{topic}-b": 1}, {f"{topic}-b": 5})
    run(produce(address, topic, range(2000, 2100)))
    assert query.everything() == [*range(5), *range(2000, 2100)]
    query.reader.stop()


@pytest.mark.parametrize("loss", ["deleted", "again", "retention"])
def test_losses_are_told_apart_and_end_the_query_unless_allowed(address: str, topic: str, loss: str) -> None:
    query = Query(address, subscribe=topic, startingOffsets="earliest", maxOffsetsPerTrigger="100")
    query.batch()
    query.reader.stop()
    if loss == "retention":
        everything = {TopicPartition(topic, number): -1 for number in (0, 1)}
        administer(address, lambda admin: admin.delete_records(everything))
        run(produce(address, topic, range(1000, 1010)))
    else:
        administer(address, lambda admin: admin.delete_topics(topic))
    if loss == "again":
        prepare(address, {topic: 2}, {topic: 10})
    said = {"deleted": "was deleted; the query stood", "again": "created again", "retention": "begins at offset"}
    strict = Query(address, query.at, subscribe=topic)
    with pytest.raises(DataLossError, match=said[loss]):
        strict.batch()
    strict.reader.stop()
    lenient = Query(address, query.at, subscribe=topic, failOnDataLoss="false")
    left = {"deleted": [], "again": list(range(10)), "retention": list(range(1000, 1010))}
    assert lenient.everything() == left[loss]
    lenient.reader.stop()


def test_a_checkpoint_of_another_cluster_is_refused(address: str, topic: str) -> None:
    query = Query(address, subscribe=topic)
    query.at["$cohort"]["cluster"] = "another"
    with pytest.raises(DataLossError, match="the checkpoint is of cluster another"):
        query.plan()
    query.reader.stop()


def test_the_group_sees_the_query_and_its_offsets_as_batches_complete(address: str, topic: str) -> None:
    query = Query(
        address, subscribe=topic, startingOffsets="earliest", maxOffsetsPerTrigger="500", group_id=f"g-{topic}"
    )
    query.batch()
    assert sum(committed(address, f"g-{topic}").values()) == 0, (
        "the first batch is not complete before the next is planned"
    )
    query.plan()
    assert 495 <= sum(committed(address, f"g-{topic}").values()) <= 502
    group = administer(address, lambda admin: admin.describe_groups(f"g-{topic}"))[f"g-{topic}"]
    (member,) = group.members
    assert (group.state, group.protocol_type, member.group_instance_id) == ("Stable", "spark-query", "spark-query")
    assert member.assignment == (TopicPartition(topic, 0), TopicPartition(topic, 1))
    query.reader.stop()
    group = administer(address, lambda admin: admin.describe_groups(f"g-{topic}"))[f"g-{topic}"]
    assert group.state == "Empty", "a query that stops leaves the group to others"


def test_a_group_that_is_made_up_stays_with_the_checkpoint(address: str, topic: str) -> None:
    options: Any = {"subscribe": topic, "startingOffsets": "earliest", "groupIdPrefix": f"seen-{topic}"}
    query = Query(address, **options)
    query.everything()
    group = query.at["$cohort"]["group"]
    assert group.startswith(f"seen-{topic}-")
    assert sum(committed(address, group).values()) == 1000
    query.reader.stop()
    again = Query(address, query.at, **options)
    assert again.plan() == query.at
    again.reader.stop()
    other = Query(address, **options)
    assert other.plan()["$cohort"]["group"] != group, "two queries do not end each other"
    other.reader.stop()


def test_a_new_checkpoint_goes_on_from_the_group(address: str, topic: str) -> None:
    query = Query(
        address, subscribe=topic, startingOffsets="earliest", maxOffsetsPerTrigger="400", group_id=f"g-{topic}"
    )
    first = numbers(query.batch())
    query.plan()
    query.reader.stop()
    again = Query(address, subscribe=topic, startingOffsets="committed", group_id=f"g-{topic}")
    assert sorted(first + again.everything()) == list(range(1000))
    again.reader.stop()


async def test_ordinary_members_are_refused_with_the_reason(address: str) -> None:
    async with Admin(address) as admin:
        await admin.create_topics({"owned": 1})
    query = await asyncio.to_thread(lambda: Query(address, subscribe="owned", group_id="owned"))
    await asyncio.to_thread(query.plan)
    async with Consumer("owned", bootstrap_servers=address, group_id="owned") as consumer:
        with pytest.raises(InconsistentGroupProtocolError, match="group owned is of protocol type spark-query"):
            async with asyncio.timeout(60):
                await consumer.getone()
    await asyncio.to_thread(query.reader.stop)


async def test_a_group_with_members_is_not_taken_from_them(address: str, caplog: pytest.LogCaptureFixture) -> None:
    async with Admin(address) as admin:
        await admin.create_topics({"taken": 1})
    async with Consumer("taken", bootstrap_servers=address, group_id="taken") as consumer:
        async with asyncio.timeout(100):
            while not consumer.assignment():
                await consumer.getmany(timeout_ms=500)
        query = await asyncio.to_thread(lambda: Query(address, subscribe="taken", group_id="taken"))
        with pytest.raises(InconsistentGroupProtocolError, match="of protocol type consumer"):
            await asyncio.to_thread(query.plan)
        caplog.clear()
        await asyncio.sleep(0.5)
        assert len(caplog.records) < 20, "it asks again now and then"
        await asyncio.to_thread(query.reader.stop)


def test_a_second_query_fences_the_first_which_commits_nothing_any_more(address: str, topic: str) -> None:
    options: Any = {
        "subscribe": topic,
        "startingOffsets": "earliest",
        "maxOffsetsPerTrigger": "300",
        "group_id": f"g-{topic}",
    }
    first = Query(address, **options)
    first.batch()
    first.plan()
    second = Query(address, **options)
    second.plan()
    assert sum(committed(address, f"g-{topic}").values()) == 0, "the group is where its owner is"
    with pytest.raises(QueryFencedError, match="has taken over group"):
        first.batch()
    first.reader.stop()
    second.batch()
    second.plan()
    assert sum(committed(address, f"g-{topic}").values()) > 0
    second.reader.stop()


@pytest.mark.parametrize("noticed", ["heartbeat", "commit"])
def test_two_sources_with_one_group_are_told_to_take_one_each(address: str, topic: str, noticed: str) -> None:
    """They look like a query that was started twice, and one of them would commit over a restart of the other."""
    other = f"{topic}-other"
    prepare(address, {other: 1})
    given: Any = {"startingOffsets": "earliest", "group_id": f"g-{topic}", "session_timeout_ms": "6000"}
    first = Query(address, subscribe=topic, maxOffsetsPerTrigger="300", **given)
    first.batch()
    second = Query(address, subscribe=other, **given)
    second.plan()
    driver = first.reader._driver
    assert driver is not None
    assert driver._ownership is not None
    if noticed == "heartbeat":
        began = perf_counter()
        while driver._ownership._error is None:
            assert perf_counter() - began < 100
            sleep(0.1)
    advice = (
        rf"which reads {other}, has taken over group 'g-{topic}' from this source, which reads {topic} .* groupIdPrefix"
    )
    with pytest.raises(QueryFencedError, match=advice):
        first.batch()
    second.plan()
    for query in (first, second):
        query.reader.stop()


def test_a_checkpoint_of_sparks_kafka_source_is_refused_and_nothing_is_read(address: str, topic: str) -> None:
    query = Query(address, {topic: {"0": 50, "1": 60}}, subscribe=topic, group_id=f"g-{topic}")
    with pytest.raises(CheckpointError, match="such as Spark's Kafka source writes"):
        query.plan()
    with pytest.raises(CheckpointError, match="such as Spark's Kafka source writes"):
        query.reader.partitions(query.at, query.at)
    assert committed(address, f"g-{topic}") == {}
    query.reader.stop()


def test_a_query_keeps_its_group_when_the_daemon_restarts(tmp_path: Path) -> None:
    with DaemonProcess(tmp_path / "data") as daemon:
        prepare(daemon.address, {"t": 2}, {"t": 100})
        query = Query(
            daemon.address, subscribe="t", startingOffsets="earliest", maxOffsetsPerTrigger="40", group_id="g"
        )
        query.batch()
        query.plan()
        daemon.kill()
        daemon.start()
        assert len(query.everything()) >= 58
        assert sum(committed(daemon.address, "g").values()) == 100
        query.reader.stop()


def test_a_daemon_that_is_gone_fails_the_query_and_its_stop_in_time(tmp_path: Path) -> None:
    with DaemonProcess(tmp_path / "data") as daemon:
        prepare(daemon.address, {"t": 1}, {"t": 10})
        given = {"bootstrap.servers": daemon.address, "subscribe": "t", "group.id": "g", "request.timeout.ms": "60000"}
        reader = CohortDataSource(given).streamReader(schema())
        start = reader.initialOffset()
        reader.latestOffset(start, ReadAllAvailable())
        waits_a_second(reader)
        daemon.kill()
        began = perf_counter()
        with pytest.raises(Exception, match=r"did not succeed within 1000 ms|did not answer"):
            reader.latestOffset(start, ReadAllAvailable())
        reader.stop()
        assert perf_counter() - began < BOUNDED_S


@pytest.mark.parametrize("available_now", [False, True])
def test_a_log_that_was_cut_short_is_read_again_from_its_start_if_records_may_be_lost(
    address: str, topic: str, available_now: bool
) -> None:
    query = Query(address, subscribe=topic, startingOffsets="earliest")
    query.at[topic] = {"0": 5000, "1": 5000}
    strict = Query(address, query.at, subscribe=topic)
    lenient = Query(address, query.at, subscribe=topic, failOnDataLoss="false")
    if available_now:
        strict.reader.prepareForTriggerAvailableNow()
        lenient.reader.prepareForTriggerAvailableNow()
    with pytest.raises(DataLossError, match="its log was cut short"):
        strict.plan()
    strict.reader.stop()
    query.reader.stop()
    assert lenient.everything() == list(range(1000))
    lenient.reader.stop()


def test_a_query_that_reads_what_is_committed_only_from_now_on_has_lost_nothing(address: str, topic: str) -> None:
    """It stands behind records of an open transaction, which it has read."""

    async def work() -> None:
        async with Producer(address, transactional_id=f"open-{topic}") as producer, producer.transaction():
            await producer.send_many(topic, [b"1000", b"1001"])
            await producer.flush()
            end = await asyncio.to_thread(read_all)
            again = await asyncio.to_thread(Query, address, end, subscribe=topic)
            assert await asyncio.to_thread(again.everything) == []
            await producer.send_many(topic, [b"1002"])
        async with asyncio.timeout(60):
            while not (found := await asyncio.to_thread(again.everything)):
                await asyncio.sleep(0.05)
        assert found == [1002]
        await asyncio.to_thread(again.reader.stop)

    def read_all() -> dict[str, Any]:
        query = Query(address, subscribe=topic, startingOffsets="earliest", isolation_level="read_uncommitted")
        assert query.everything() == list(range(1002))
        query.reader.stop()
        return query.at

    run(work())


@pytest.mark.parametrize("streaming", [True, False])
def test_starting_offsets_behind_the_end_of_a_log_are_refused(address: str, topic: str, streaming: bool) -> None:
    """They are of another cluster, or of a topic that was created again: a batch would read nothing and say nothing."""
    given = {"bootstrap.servers": address, "subscribe": topic}
    offsets = json.dumps({topic: {"0": 5000, "1": 0}})
    source = CohortDataSource(given | {"startingOffsets": offsets})
    stream = source.streamReader(schema())
    with pytest.raises(
        OptionsError, match=rf"startingOffsets has offset 5000 of {topic}-0, which ends at \d+; -2 begins at"
    ):
        stream.initialOffset() if streaming else source.reader(schema()).partitions()
    stream.stop()


def test_a_topic_that_is_not_subscribed_to_any_more_is_not_called_deleted(address: str, topic: str) -> None:
    prepare(address, {f"{topic}-b": 1}, {f"{topic}-b": 5})
    query = Query(address, subscribe=f"{topic},{topic}-b", startingOffsets="earliest")
    query.everything()
    query.reader.stop()
    ways: list[dict[str, Any]] = [{"subscribe": topic}, {"assign": json.dumps({topic: [0, 1], f"{topic}-b": []})}]
    for options in ways:
        fewer = Query(address, query.at, **options)
        with pytest.raises(DataLossError, match=f"{topic}-b-0 is not subscribed to any more; .* stood at offset 5"):
            fewer.plan()
        fewer.reader.stop()


@pytest.mark.parametrize("lenient", ["false", "true"])
def test_a_topic_that_was_created_again_gets_no_offsets_of_the_one_before(
    address: str, topic: str, lenient: str
) -> None:
    options: Any = {"subscribe": topic, "startingOffsets": "earliest", "group_id": f"g-{topic}"}
    query = Query(address, **options, failOnDataLoss="false" if lenient == "true" else "true")
    query.batch()
    administer(address, lambda admin: admin.delete_topics(topic))
    prepare(address, {topic: 2}, {topic: 2000})
    old = query.at
    with pytest.raises(DataLossError) if lenient == "false" else contextlib.nullcontext():
        query.plan()
    assert sum(committed(address, f"g-{topic}").values()) == 0, "nothing of the new topic was read"
    query.reader.commit(old)
    assert sum(committed(address, f"g-{topic}").values()) == 0, "nor is it when Spark says what is complete"
    if lenient == "true":
        assert query.everything() == list(range(2000))
        assert sum(committed(address, f"g-{topic}").values()) == 2000
    query.reader.stop()


def test_offsets_that_a_topic_reaches_again_after_it_was_created_again_are_committed(address: str, topic: str) -> None:
    query = Query(address, subscribe=topic, startingOffsets="earliest", group_id=f"g-{topic}", failOnDataLoss="false")
    query.everything()
    administer(address, lambda admin: admin.delete_topics(topic))
    prepare(address, {topic: 2}, {topic: 1000})
    assert query.everything() == list(range(1000))
    assert sum(committed(address, f"g-{topic}").values()) == 1000
    query.reader.stop()


def test_a_query_that_is_on_its_way_back_into_its_group_does_not_commit_without_a_member_id(
    address: str, topic: str
) -> None:
    """Without a member and a generation an empty group takes a commit from any client, also from a query long replaced."""
    query = Query(address, subscribe=topic, startingOffsets="earliest", group_id=f"g-{topic}")
    query.batch()
    waits_a_second(query.reader)
    driver = query.reader._driver
    assert driver is not None
    ownership = driver._ownership
    driver.release()
    assert ownership is not None
    ownership._member._membership.session = None  # as between the loss of a session and the next
    driver._ownership = ownership
    with pytest.raises(RequestTimedOutError, match="not a member"):
        driver.commit({TopicPartition(topic, 0): 77})
    assert committed(address, f"g-{topic}").get(0, 0) != 77
    query.reader.stop()


def test_a_daemon_that_hangs_in_the_middle_of_anything_ends_the_query_and_leaves_nothing_behind(
    tmp_path: Path,
) -> None:
    for thread in (_THREAD, SHARED_THREAD):
        thread.stop()  # with what other tests of this process have left on it, as a query that never began
    with DaemonProcess(tmp_path / "data") as daemon:
        prepare(daemon.address, {"t": 2}, {"t": 10})
        given = {"bootstrap.servers": daemon.address, "subscribe": "t", "group.id": "g", "request.timeout.ms": "60000"}
        for step in ("plan", "own", "commit", "bytes", "nothing"):
            reader = CohortDataSource(given).streamReader(schema())
            start = reader.initialOffset()
            driver = reader._connected()
            partitions = driver.partitions(driver.topology())
            if step != "own":
                reader.latestOffset(start, ReadAllAvailable())
            waits_a_second(reader)
            daemon.send(signal.SIGSTOP)
            began = perf_counter()
            steps: dict[str, Callable[[], Any]] = {
                "plan": partial(reader.latestOffset, start, ReadAllAvailable()),
                "own": partial(driver.own, "g", partitions),
                "commit": partial(driver.commit, {partitions[0]: 5}),
                "bytes": partial(driver.record_bytes, dict.fromkeys(partitions, 0)),
            }
            if step in steps:
                with pytest.raises(CohortError):
                    steps[step]()
            reader.stop()
            assert perf_counter() - began < BOUNDED_S, step
            daemon.send(signal.SIGCONT)
            for thread in (_THREAD, SHARED_THREAD):
                left = thread.call(tasks_left(), 60)
                assert not left, (step, left)


async def tasks_left() -> list[str]:
    """What runs on this loop besides the question itself, after whatever was cancelled has had its turns."""
    for _ in range(1000):
        left = [task.get_name() for task in asyncio.all_tasks() if task is not asyncio.current_task()]
        if not left:
            break
        await asyncio.sleep(0.01)
    return left


def waits_a_second(reader: CohortStreamReader) -> None:
    """From here on its requests may take a second; those to a daemon that is there, the time that a busy machine needs."""
    driver = reader._connected()
    for part in (reader, driver):
        connection = replace(part._options.connection, request_timeout_ms=1000)
        part._options = replace(part._options, connection=connection)
