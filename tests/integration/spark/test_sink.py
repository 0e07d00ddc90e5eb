"""The sink: rows of a task into partitions, each once and in order within an attempt, whatever the network does."""

from __future__ import annotations

import asyncio
import pickle
from collections.abc import Iterator
from pathlib import Path
from random import Random
from time import perf_counter
from typing import Any

import pyarrow
import pytest
from pyspark.sql.types import BinaryType, IntegerType, LongType, StringType, StructField, StructType

from client import Admin, CohortError, Consumer, InvalidRecordError, MessageTooLargeError, UnknownTopicOrPartitionError
from client.spark.errors import OptionsError
from client.spark.options import sink_options
from client.spark.sink import Written
from client.spark.source import CohortDataSource
from client.spark.tasks.writer import TaskWriter
from coordinator import Coordinator
from protocol.hashing import partition_for_key
from tests.daemon_process import DaemonProcess
from tests.integration.hostile_proxy import HostileProxy, Malice
from tests.integration.spark.calls import administer, numbers, prepare, read

TYPES = {
    "key": BinaryType(),
    "value": BinaryType(),
    "text": StringType(),
    "topic": StringType(),
    "partition": IntegerType(),
    "offset": LongType(),
}


@pytest.fixture(scope="module")
def address(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    with DaemonProcess(tmp_path_factory.mktemp("daemon") / "data") as daemon:
        yield daemon.address


@pytest.fixture
def topic(address: str, request: pytest.FixtureRequest) -> str:
    """A topic of its own with four partitions."""
    name = "".join(letter if letter.isalnum() else "-" for letter in request.node.name)[:100]
    prepare(address, {name: 4})
    return name


def schema_of(columns: dict[str, Any]) -> StructType:
    return StructType([StructField(name, TYPES[name]) for name in columns])


def write(address: str, columns: dict[str, Any], batches: int = 1, **options: str) -> Written:
    """One task that writes these columns, in so many Arrow batches."""
    given = {"bootstrap.servers": address, "delivery": "at-least-once"} | {
        name.replace("_", "."): value for name, value in options.items()
    }
    writer = CohortDataSource(given).streamWriter(schema_of(columns), False)
    table = pyarrow.table(columns)
    parts = table.to_batches(max_chunksize=max(1, len(table) // batches))
    message = pickle.loads(pickle.dumps(writer)).write(iter(parts))
    writer.commit([message], 0)
    copied: Written = pickle.loads(pickle.dumps(message))
    return copied


def texts(count: int) -> Any:
    return pyarrow.array([b"%d" % number for number in range(count)], pyarrow.binary())


@pytest.mark.parametrize("compression", ["none", "gzip"])
def test_rows_go_where_the_python_client_puts_their_keys_and_keep_their_order(
    address: str, topic: str, compression: str
) -> None:
    message = write(
        address,
        {"key": texts(20_000), "value": texts(20_000)},
        batches=7,
        topic=topic,
        batch_size="20000",
        compression_type=compression,
    )
    assert sum(message.records.values()) == 20_000
    table = read(address, subscribe=topic)
    assert numbers(table) == list(range(20_000))
    for partition in range(4):
        mine = table.filter(pyarrow.compute.equal(table.column("partition"), partition))
        values = [int(value) for value in mine.column("value").to_pylist()]
        assert values == sorted(values)
        assert all(partition_for_key(b"%d" % value, 4) == partition for value in values)
        assert mine.column("offset").to_pylist() == list(range(len(values)))


def test_columns_say_topic_and_partition(address: str, topic: str) -> None:
    prepare(address, {f"{topic}-2": 2})
    columns = {
        "value": texts(4),
        "topic": pyarrow.array([topic, f"{topic}-2", topic, f"{topic}-2"]),
        "partition": pyarrow.array([3, None, 0, 1], pyarrow.int32()),
        "offset": pyarrow.array([9, 9, 9, 9], pyarrow.int64()),
    }
    message = write(address, columns)
    assert message.records[(topic, 3)] == message.records[(topic, 0)] == 1
    assert sum(count for (name, _), count in message.records.items() if name == f"{topic}-2") == 2
    write(address, columns | {"partition": pyarrow.array([1] * 4, pyarrow.int32())}, topic=topic)
    assert read(address, assign=f'{{"{topic}": [1]}}').num_rows == 4, "the option goes before the column"


def test_rows_without_keys_are_spread(address: str, topic: str) -> None:
    message = write(address, {"value": texts(8000)}, topic=topic)
    assert sorted(message.records.values()) == [2000] * 4


def test_tombstones_headers_and_strings(address: str, topic: str) -> None:
    async def take() -> list[Any]:
        async with Consumer(topic, bootstrap_servers=address, auto_offset_reset="earliest") as consumer:
            return [await consumer.getone() for _ in range(2)]

    headers = pyarrow.array(
        [[{"key": "a", "value": b"1"}], None],
        pyarrow.list_(pyarrow.struct({"key": "string", "value": "binary"}.items())),
    )
    batch = pyarrow.record_batch(
        {"key": pyarrow.array(["x", "x"]), "value": pyarrow.array(["é", None]), "headers": headers}
    )
    with TaskWriter(sink_options({"bootstrap.servers": address, "topic": topic}), lambda: 5_000) as writer:
        writer.add(batch)
        writer.finish()
    first, second = asyncio.run(take())
    assert (first.key, first.value, first.headers, first.timestamp_ms) == (b"x", "é".encode(), (("a", b"1"),), 5_000)
    assert (second.value, second.headers) == (None, ())


@pytest.mark.parametrize(("header", "said"), [(None, "that is null"), ({"key": None, "value": b"1"}, "without a key")])
def test_a_header_that_no_record_can_have_is_refused_with_what_to_do(
    address: str, topic: str, header: Any, said: str
) -> None:
    kind = pyarrow.list_(pyarrow.struct({"key": "string", "value": "binary"}.items()))
    batch = pyarrow.record_batch({"value": texts(1), "headers": pyarrow.array([[header]], kind)})
    with TaskWriter(sink_options({"bootstrap.servers": address, "topic": topic}), lambda: 0) as writer:
        writer.add(batch)
        with pytest.raises(InvalidRecordError, match=rf"a header {said}, .* filter\(headers, header ->"):
            writer.finish()


def test_a_task_without_rows_writes_nothing(address: str, topic: str) -> None:
    assert write(address, {"value": texts(0)}, topic=topic).records == {}


@pytest.mark.parametrize(
    ("columns", "options", "said"),
    [
        (["key", "text"], {"topic": "t"}, "no column value, but key, text"),
        (["value"], {}, "neither the option topic nor a column topic"),
        (["value", "offset"], {"batch.size": "0"}, "batch.size is '0'"),
    ],
)
def test_rows_that_cannot_be_written_are_refused_before_the_first(
    columns: list[str], options: dict[str, str], said: str
) -> None:
    with pytest.raises(OptionsError, match=said):
        CohortDataSource(options).writer(StructType([StructField(name, TYPES[name]) for name in columns]), False)


def test_a_topic_is_not_overwritten() -> None:
    with pytest.raises(OptionsError, match="use append"):
        CohortDataSource({"topic": "t"}).writer(StructType([StructField("value", BinaryType())]), True)


def test_what_the_daemon_refuses_is_told_by_the_task(address: str, topic: str) -> None:
    with pytest.raises(UnknownTopicOrPartitionError, match="'nowhere' does not exist"):
        write(address, {"value": texts(1)}, topic="nowhere")
    with pytest.raises(UnknownTopicOrPartitionError, match="names partition 4 of topic"):
        write(address, {"value": texts(1), "partition": pyarrow.array([4], pyarrow.int32())}, topic=topic)
    with pytest.raises(MessageTooLargeError, match=r"max\.message\.bytes"):
        write(address, {"value": pyarrow.array([b"x" * 2_000_000])}, topic=topic)
    with pytest.raises(CohortError, match="1 row has no topic"):
        write(address, {"value": texts(2), "topic": pyarrow.array([topic, None])})


def test_rows_for_many_partitions_go_in_as_many_requests_as_a_daemon_takes(address: str, topic: str) -> None:
    """42 MB that come as one Arrow batch, of which each partition gets one batch: together above what a frame may hold."""
    wide = f"{topic}-wide"
    prepare(address, {wide: 200})
    columns = {"key": texts(10_000), "value": pyarrow.array([b"%04200d" % number for number in range(10_000)])}
    began = perf_counter()
    message = write(address, columns, topic=wide, delivery_timeout_ms="110000")
    assert perf_counter() - began < 110, "nothing is refused and tried again until the delivery timeout is over"
    assert sum(message.records.values()) == 10_000
    assert numbers(read(address, "value", subscribe=wide)) == list(range(10_000))


def test_a_row_above_the_bound_of_a_request_is_refused_at_once(address: str, topic: str) -> None:
    large = pyarrow.array([b"x" * 5_000_000])
    with pytest.raises(MessageTooLargeError, match=r"takes 5,000,\d+ bytes, above max\.request\.size of 4,194,304"):
        write(address, {"value": large}, topic=topic)
    with pytest.raises(MessageTooLargeError, match=r"takes 80,000,\d+ bytes, above max\.request\.size"):
        write(address, {"value": pyarrow.array([b"x" * 80_000_000])}, topic=topic)
    with pytest.raises(MessageTooLargeError, match=r"max\.message\.bytes of its topic"):
        write(address, {"value": large}, topic=topic, max_request_size="8000000")


def test_batches_that_are_too_large_for_their_topic_are_halved(address: str, topic: str) -> None:
    narrow = f"{topic}-narrow"
    administer(address, lambda admin: admin.create_topics({narrow: 2}, {"max.message.bytes": "3000"}))
    message = write(address, {"key": texts(2000), "value": texts(2000)}, topic=narrow)
    assert sum(message.records.values()) == 2000
    table = read(address, subscribe=narrow)
    assert numbers(table) == list(range(2000))
    for partition in range(2):
        mine = table.filter(pyarrow.compute.equal(table.column("partition"), partition))
        values = [int(value) for value in mine.column("value").to_pylist()]
        assert values == sorted(values)
    columns = {"value": pyarrow.array([b"small", b"x" * 4000, b"small"])}
    with pytest.raises(MessageTooLargeError, match=r"1 record for .* was not stored"):
        write(address, columns, topic=narrow)


def test_requests_are_as_small_as_the_daemon_wants_them(tmp_path: Path) -> None:
    with DaemonProcess(tmp_path / "data", "--max-frame-bytes", "100000", "--max-message-bytes", "90000") as daemon:
        prepare(daemon.address, {"t": 20})
        values = pyarrow.array([b"%01000d" % number for number in range(3000)])
        message = write(daemon.address, {"key": texts(3000), "value": values}, topic="t", batch_size="60000")
        assert sum(message.records.values()) == 3000
        assert numbers(read(daemon.address, "value", subscribe="t")) == list(range(3000))
        with pytest.raises(
            MessageTooLargeError, match=r"above what the daemon takes in a request, 9\d,\d+; raise its max_frame"
        ):
            write(daemon.address, {"value": pyarrow.array([b"x" * 100_000])}, topic="t")


def test_a_daemon_that_is_gone_ends_the_task_in_time() -> None:
    began = perf_counter()
    gone: Any = {"topic": "t", "request_timeout_ms": "500", "delivery_timeout_ms": "1000"}
    with pytest.raises(CohortError):
        write("127.0.0.1:1", {"value": texts(1)}, **gone)
    assert perf_counter() - began < 60


def numbered(address: str, topic: str, rows: int) -> None:
    """One task writes numbers to every partition in many small requests, each with two of three partitions at most."""
    given = {"bootstrap.servers": address, "topic": topic, "request.timeout.ms": "400", "delivery.timeout.ms": "90000"}
    bounds = {"batch.size": "400", "max.request.size": "1024"}
    with TaskWriter(sink_options({**given, **bounds}), lambda: 0) as writer:
        for start in range(0, rows, 200):
            values = pyarrow.array([b"%d" % number for number in range(start, start + 200)])
            writer.add(pyarrow.record_batch({"key": values, "value": values}))
        writer.finish()


@pytest.mark.parametrize(
    "malice",
    [
        Malice(answer_lost=0.1),
        Malice(twice=0.5),
        Malice(late=0.3),
        Malice(never=0.1),
        Malice(broken=0.02),
        Malice(twice=0.2, late=0.1, never=0.05, answer_lost=0.05, broken=0.01),
    ],
    ids=["answers are lost", "twice", "late", "never", "broken", "all of it"],
)
async def test_each_row_of_an_attempt_is_written_once_and_in_order_over_a_hostile_network(malice: Malice) -> None:
    rows = 3000
    async with (
        HostileProxy(malice, Random(f"{malice}")) as proxy,
        Coordinator(advertised_host="127.0.0.1", advertised_port=proxy.port) as coordinator,
    ):
        proxy.upstream_port = int(coordinator.address.rpartition(":")[2])
        async with Admin(coordinator.address) as admin:
            await admin.create_topics({"t": 3})
        await asyncio.to_thread(numbered, f"127.0.0.1:{proxy.port}", "t", rows)
        assert proxy.done, "the network did nothing wrong"
        proxy.malice = Malice()
        table = await asyncio.to_thread(read, coordinator.address, subscribe="t")
        assert numbers(table) == list(range(rows))
        for partition in range(3):
            mine = table.filter(pyarrow.compute.equal(table.column("partition"), partition))
            values = [int(value) for value in mine.column("value").to_pylist()]
            assert values == sorted(values)


def test_a_task_survives_a_daemon_that_is_killed_while_it_writes(tmp_path_factory: pytest.TempPathFactory) -> None:
    with DaemonProcess(tmp_path_factory.mktemp("daemon") / "data") as daemon:
        prepare(daemon.address, {"t": 2})
        given = {"bootstrap.servers": daemon.address, "topic": "t", "batch.size": "5000"}
        with TaskWriter(sink_options(given), lambda: 0) as writer:
            for number in range(6):
                values = [b"%100d" % one for one in range(20_000 * number, 20_000 * (number + 1))]
                writer.add(pyarrow.record_batch({"value": pyarrow.array(values)}))
                if number in (1, 3):
                    daemon.kill()
                    daemon.start()
            writer.finish()
            assert sum(writer.acknowledged.values()) == 120_000
        assert numbers(read(daemon.address, subscribe="t")) == list(range(120_000))


@pytest.mark.parametrize("batches", [1, 5, 40])
def test_a_partition_that_knows_nothing_of_the_task_any_more_takes_the_rest_once_and_in_order(
    address: str, topic: str, batches: int
) -> None:
    """As after the topic was created again: numbers begin anew, also those of requests that were waiting for a turn."""
    given = {"bootstrap.servers": address, "topic": topic, "batch.size": "200", "delivery.timeout.ms": "20000"}

    def rows(start: int, count: int) -> Any:
        return pyarrow.record_batch(
            {"value": pyarrow.array([b"%d" % number for number in range(start, start + count)])}
        )

    with TaskWriter(sink_options(given), lambda: 0) as writer:
        writer.add(rows(0, 900))
        writer._write()
        writer._producer.flush()
        administer(address, lambda admin: admin.delete_topics(topic))
        prepare(address, {topic: 4})
        for number in range(batches):
            writer.add(rows(1000 * (1 + number), 900))
            writer._write()
        writer.finish()
    table = read(address, subscribe=topic)
    assert numbers(table) == [1000 * (1 + number) + row for number in range(batches) for row in range(900)]
    for partition in range(4):
        mine = table.filter(pyarrow.compute.equal(table.column("partition"), partition))
        values = [int(value) for value in mine.column("value").to_pylist()]
        assert values == sorted(values)
