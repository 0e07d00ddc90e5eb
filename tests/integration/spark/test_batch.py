"""Batches: every record of the range, in Arrow batches as Spark checks them."""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator
from time import perf_counter

import pytest
from pyspark.sql.pandas.types import to_arrow_schema

from client import (
    CohortError,
    OffsetOutOfRangeError,
    Producer,
    RequestTimedOutError,
    TopicPartition,
    UnknownTopicOrPartitionError,
)
from client.spark.driver import Driver
from client.spark.errors import DataLossError, OptionsError
from client.spark.options import source_options
from client.spark.planning import Range
from client.spark.source import CohortDataSource
from client.spark.tasks.blocking_connection import Until
from client.spark.tasks.reader import RangeReader
from tests.daemon_process import DaemonProcess
from tests.integration.spark.calls import administer, numbers, prepare, produce, read, run, schema, tasks

BOUNDED_S = 25
"""Before what a request may take by default is over."""


@pytest.fixture(scope="module")
def address(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    with DaemonProcess(tmp_path_factory.mktemp("daemon") / "data") as daemon:
        prepare(daemon.address, {"t": 3, "cut": 1, "mixed": 1}, {"t": 5000, "cut": 100})
        yield daemon.address


def test_all_records_with_the_columns_of_sparks_kafka_source(address: str) -> None:
    table = read(address, subscribe="t")
    assert table.schema.equals(to_arrow_schema(schema(), timezone="UTC"))
    assert numbers(table) == list(range(5000))
    assert table.column("key").equals(table.column("value"))
    places = set(zip(table.column("partition").to_pylist(), table.column("offset").to_pylist(), strict=True))
    assert len(places) == 5000
    assert {partition for partition, _ in places} == {0, 1, 2}


@pytest.mark.parametrize("parts", ["1", "7", "40"])
def test_partitions_are_cut_for_more_tasks(address: str, parts: str) -> None:
    source = CohortDataSource({"bootstrap.servers": address, "subscribe": "t", "minPartitions": parts})
    reader = source.reader(schema("value"))
    planned = list(reader.partitions())
    assert len(planned) >= max(3, int(parts))
    assert numbers(tasks(reader, planned)) == list(range(5000))


def test_tiny_fetches_and_ranges_inside_batches(address: str) -> None:
    every = {"bootstrap.servers": address, "subscribe": "cut", "fetch.max.bytes": "1"}
    for start, end in ((0, 100), (1, 99), (37, 38), (99, 100)):
        given = every | {
            "startingOffsets": f'{{"cut": {{"0": {start}}}}}',
            "endingOffsets": f'{{"cut": {{"0": {end}}}}}',
        }
        reader = CohortDataSource(given).reader(schema("offset", "value"))
        assert numbers(tasks(reader, reader.partitions())) == list(range(start, end))


def test_null_keys_tombstones_headers_and_compression(address: str) -> None:
    async def send() -> None:
        async with Producer(address, compression="gzip") as producer:
            await producer.send_and_wait("mixed", b"v", None, headers=(("a", b"1"), ("b", None)), timestamp_ms=1_000)
            await producer.send_and_wait("mixed", None, b"k", timestamp_ms=2_000)

    run(send())
    table = read(
        address, "key", "value", "headers", "timestamp", "timestampType", subscribe="mixed", includeHeaders="true"
    )
    first, second = table.to_pylist()
    assert (first["key"], first["value"], second["key"], second["value"]) == (None, b"v", b"k", None)
    assert first["headers"] == [{"key": "a", "value": b"1"}, {"key": "b", "value": None}]
    assert second["headers"] is None
    assert [row["timestamp"].timestamp() for row in (first, second)] == [1.0, 2.0]
    later = '{"mixed": {"0": 1500}}'
    assert read(address, subscribe="mixed", startingOffsetsByTimestamp=later).num_rows == 1
    assert read(address, subscribe="mixed", endingTimestamp="1500").num_rows == 1
    assert read(address, subscribe="mixed", endingOffsetsByTimestamp=later).num_rows == 1
    with pytest.raises(OptionsError, match="mixed-0 have no record so late"):
        read(address, subscribe="mixed", startingTimestamp="3000")
    latest = {"startingTimestamp": "3000", "startingOffsetsByTimestampStrategy": "latest"}
    assert read(address, subscribe="mixed", **latest).num_rows == 0


def test_patterns_and_single_partitions(address: str) -> None:
    assert numbers(read(address, subscribePattern="t|nothing")) == list(range(5000))
    assert set(read(address, assign='{"t": [1]}').column("partition").to_pylist()) == {1}
    assert read(address, subscribePattern="nothing").num_rows == 0


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"subscribe": "t", "startingOffsets": '{"t": {"0": 0}}'}, "leaves out t-1, t-2"),
        ({"subscribe": "cut", "startingOffsets": '{"cut": {"0": 0, "9": 0}}'}, "names cut-9"),
    ],
)
def test_offsets_for_other_partitions_are_refused(address: str, options: dict[str, str], said: str) -> None:
    with pytest.raises(OptionsError, match=said):
        read(address, **options)


@pytest.mark.parametrize("options", [{"subscribe": "missing"}, {"assign": '{"t": [7]}'}])
def test_what_is_not_there_is_told_at_once(address: str, options: dict[str, str]) -> None:
    began = perf_counter()
    with pytest.raises(UnknownTopicOrPartitionError, match=r"does not exist|has 3 partitions"):
        read(address, **options)
    assert perf_counter() - began < 25, "before the request times out"


def test_columns_that_are_not_there_are_told_with_those_that_are(address: str) -> None:
    from pyspark.sql.types import StringType, StructField, StructType

    source = CohortDataSource({"bootstrap.servers": address, "subscribe": "t"})
    wrong = StructType([StructField("value", StringType()), StructField("body", StringType())])
    with pytest.raises(OptionsError, match=r"value is binary and not string.*there is no column 'body'"):
        source.reader(wrong)


def test_records_that_are_gone_fail_a_batch_unless_they_may_be_lost(address: str) -> None:
    prepare(address, {"short": 1}, {"short": 50})
    administer(address, lambda admin: admin.delete_records({TopicPartition("short", 0): 20}))
    start = '{"short": {"0": 5}}'
    with pytest.raises(DataLossError, match="short-0 begins at offset 20, and 5 to 49 were to be read"):
        read(address, subscribe="short", startingOffsets=start)
    kept = read(address, "offset", "value", subscribe="short", startingOffsets=start, failOnDataLoss="false")
    assert kept.column("offset").to_pylist() == list(range(20, 50))


def test_a_task_of_a_topic_that_was_created_again_reads_none_of_it(address: str) -> None:
    prepare(address, {"again": 1}, {"again": 10})
    source = CohortDataSource({"bootstrap.servers": address, "subscribe": "again"})
    reader = source.reader(schema())
    planned = list(reader.partitions())
    administer(address, lambda admin: admin.delete_topics("again"))
    with pytest.raises(DataLossError, match="again-0 was deleted"):
        tasks(reader, planned)
    prepare(address, {"again": 1}, {"again": 20})
    with pytest.raises(DataLossError, match="deleted and created again"):
        tasks(reader, planned)


def test_a_task_that_is_left_in_the_middle_leaves_nothing_for_the_next(address: str) -> None:
    options = source_options(
        {"bootstrap.servers": address, "subscribe": "t", "fetch.max.bytes": "100"}, streaming=False
    )
    arrow = to_arrow_schema(schema("value"), timezone="UTC")
    batches = RangeReader(options, Range("t", 0, 0, 1000), arrow).batches()
    next(batches)
    batches.close()  # type: ignore[attr-defined]
    assert sum(batch.num_rows for batch in RangeReader(options, Range("t", 0, 0, 1000), arrow).batches()) == 1000


@pytest.mark.parametrize("daemon", ["dead", "silent"])
def test_a_dead_or_silent_daemon_fails_the_query_in_time(daemon: str) -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        address = f"127.0.0.1:{listener.getsockname()[1]}"
        if daemon == "dead":
            listener.close()
        given = {"bootstrap.servers": address, "subscribe": "t", "request.timeout.ms": "700"}
        began = perf_counter()
        with pytest.raises(CohortError):
            CohortDataSource(given).reader(schema()).partitions()
        options = source_options(given, streaming=False)
        arrow = to_arrow_schema(schema(), timezone="UTC")
        with pytest.raises(CohortError):
            list(RangeReader(options, Range("t", 0, 0, 10), arrow).batches())
        assert perf_counter() - began < BOUNDED_S


@pytest.mark.parametrize(("given", "attempts"), [({}, 1), ({"fetchOffset.numRetries": "2"}, 3)])
def test_asking_for_offsets_is_begun_again_as_often_as_the_job_says(given: dict[str, str], attempts: int) -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        listener.settimeout(0)
        silent = {"bootstrap.servers": f"127.0.0.1:{listener.getsockname()[1]}", "subscribe": "t"}
        driver = Driver(source_options(silent | {"request.timeout.ms": "2000"} | given, streaming=False))
        with pytest.raises(CohortError):
            driver.topology()
        driver.close()
        connections = [listener.accept()[0] for _ in range(attempts)]
        with pytest.raises(BlockingIOError):
            listener.accept()
        for connection in connections:
            connection.close()


def test_a_task_goes_on_where_it_was_when_the_daemon_comes_back(tmp_path_factory: pytest.TempPathFactory) -> None:
    with DaemonProcess(tmp_path_factory.mktemp("daemon") / "data") as daemon:
        prepare(daemon.address, {"t": 1})
        run(produce(daemon.address, "t", range(3000), batch=10))
        given = {"bootstrap.servers": daemon.address, "subscribe": "t", "fetch.max.bytes": "2000"}
        options = source_options(given, streaming=False)
        arrow = to_arrow_schema(schema("value", "offset"), timezone="UTC")
        offsets: list[int] = []
        starter = threading.Timer(0.3, daemon.start)
        for count, batch in enumerate(RangeReader(options, Range("t", 0, 0, 3000), arrow).batches()):
            offsets += batch.column("offset").to_pylist()
            if count in (3, 10):
                if count == 10:
                    starter.join()
                    starter = threading.Timer(0.3, daemon.start)
                daemon.kill()
                starter.start()
        starter.join()
        assert offsets == list(range(3000))


def test_planning_waits_for_a_daemon_that_comes_back(tmp_path_factory: pytest.TempPathFactory) -> None:
    with DaemonProcess(tmp_path_factory.mktemp("daemon") / "data") as daemon:
        prepare(daemon.address, {"t": 1}, {"t": 10})
        driver = Driver(source_options({"bootstrap.servers": daemon.address, "subscribe": "t"}, streaming=False))
        driver.topology()
        for ask in (lambda: driver.record_bytes({TopicPartition("t", 0): 0}), lambda: driver.committed("unused")):
            daemon.kill()
            starter = threading.Timer(0.5, daemon.start)
            starter.start()
            try:
                answer = ask()
            finally:
                starter.join()
            assert answer == {} or answer[TopicPartition("t", 0)] > 1
        driver.close()


def test_a_daemon_that_stays_away_ends_the_task(tmp_path_factory: pytest.TempPathFactory) -> None:
    with DaemonProcess(tmp_path_factory.mktemp("daemon") / "data") as daemon:
        prepare(daemon.address, {"t": 1})
        run(produce(daemon.address, "t", range(1000), batch=10))
        given = {"bootstrap.servers": daemon.address, "subscribe": "t", "fetch.max.bytes": "2000"}
        options = source_options(given | {"request.timeout.ms": "3000"}, streaming=False)
        batches = RangeReader(
            options, Range("t", 0, 0, 1000), to_arrow_schema(schema("value"), timezone="UTC")
        ).batches()
        next(batches)
        daemon.kill()
        began = perf_counter()
        with pytest.raises((CohortError, RequestTimedOutError)):
            list(batches)
        assert perf_counter() - began < BOUNDED_S


def test_batches_that_are_kept_stay_as_they_were(address: str) -> None:
    prepare(address, {"kept": 1})

    async def send() -> None:
        async with Producer(address) as producer:
            for start in range(0, 1000, 20):
                await producer.send_many("kept", [b"%d" % n + bytes(5_000) for n in range(start, start + 20)])

    run(send())
    options = source_options(
        {"bootstrap.servers": address, "subscribe": "kept", "fetch.max.bytes": "150000"}, streaming=False
    )
    arrow = to_arrow_schema(schema("value"), timezone="UTC")
    batches = list(RangeReader(options, Range("kept", 0, 0, 1000), arrow).batches())
    assert len(batches) > 10
    values = [value.rstrip(b"\0") for batch in batches for value in batch.column("value").to_pylist()]
    assert values == [b"%d" % number for number in range(1000)]


def test_a_topic_that_is_created_again_while_a_task_reads_is_not_taken_for_the_one_before(address: str) -> None:
    prepare(address, {"swapped": 1})
    run(produce(address, "swapped", range(500), batch=10))
    source = CohortDataSource({"bootstrap.servers": address, "subscribe": "swapped", "fetch.max.bytes": "1"})
    reader = source.reader(schema("value"))
    (part,) = reader.partitions()
    batches = reader.read(part)
    next(batches)
    administer(address, lambda admin: admin.delete_topics("swapped"))
    prepare(address, {"swapped": 1})
    run(produce(address, "swapped", range(5000, 5600), batch=10))
    with pytest.raises(DataLossError, match="deleted and created again"):
        list(batches)


def test_a_topic_that_is_gone_when_its_start_is_asked_for_is_told_as_that(address: str) -> None:
    prepare(address, {"vanishing": 1}, {"vanishing": 10})
    options = source_options({"bootstrap.servers": address, "subscribe": "vanishing"}, streaming=False)
    reader = RangeReader(options, Range("vanishing", 0, 5, 10), to_arrow_schema(schema("value"), timezone="UTC"))
    assert reader._find()
    administer(address, lambda admin: admin.delete_topics("vanishing"))
    assert reader._skip_gone(Until(2_000), OffsetOutOfRangeError("5"))
    with pytest.raises(DataLossError, match="vanishing-0 was deleted"):
        reader._fetched()
    reader._cluster.close()
