"""The sink exactly once, as Spark drives it and without Spark: attempts, winners, replays, drivers that die."""

from __future__ import annotations

import asyncio
import json
import pickle
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from time import sleep
from typing import Any

import pyarrow
import pytest
from pyspark import TaskContext
from pyspark.sql.types import BinaryType, StringType, StructField, StructType

from client import (
    Admin,
    CohortError,
    CommitFailedError,
    InvalidTxnStateError,
    ProducerFencedError,
    TransactionAbortedError,
)
from client.spark.errors import CheckpointError, OptionsError, QueryFencedError
from client.spark.options import sink_options
from client.spark.sink import BATCH_ID, QUERY_ID, Written
from client.spark.source import CohortDataSource
from client.spark.tasks.blocking_cluster import BlockingCluster
from client.spark.transaction import DRIVER, Coordinator
from protocol.subscription import TopicPartition
from tests.daemon_process import DaemonProcess
from tests.integration.spark.calls import Query, administer, numbers, prepare, read
from tests.integration.spark.points import wait

SCHEMA = StructType([StructField("key", BinaryType()), StructField("value", BinaryType())])
TWO_TOPICS = StructType([*SCHEMA.fields, StructField("topic", StringType())])


@pytest.fixture
def daemon(tmp_path: Path) -> Iterator[DaemonProcess]:
    with DaemonProcess(tmp_path / "data") as started:
        prepare(started.address, {"out": 2, "more": 2})
        yield started


@contextmanager
def task(partition: int, attempt: int, **properties: str) -> Iterator[None]:
    """This process is a task of Spark."""
    context = TaskContext._getOrCreate()
    context._partitionId, context._attemptNumber, context._localProperties = partition, attempt, properties
    try:
        yield
    finally:
        TaskContext._setTaskContext(None)


def rows(values: Sequence[int], topics: Sequence[str] | None = None) -> Any:
    texts = pyarrow.array([b"%d" % value for value in values], pyarrow.binary())
    columns = {"key": texts, "value": texts}
    return pyarrow.record_batch(columns if topics is None else columns | {"topic": pyarrow.array(topics)})


class Sink:
    """The sink of one query: ``attempt`` runs in a task, ``commit`` and ``abort`` on a driver, each on an instance anew."""

    def __init__(self, address: str, query_id: str = "q", **options: str) -> None:
        given = {name.replace("_", "."): value for name, value in options.items()}
        self.options = {"bootstrap.servers": address, "topic": "out", "delivery": "exactly-once", **given}
        self.query_id = query_id
        self.schema = SCHEMA
        if self.options["topic"] == "":
            del self.options["topic"]
            self.schema = TWO_TOPICS

    def writer(self) -> Any:
        return CohortDataSource(self.options).streamWriter(self.schema, False)

    def attempt(self, batch: int, content: Any, part: int = 0, number: int = 0) -> Written:
        """One attempt of a task: ``content`` are its Arrow batches, or numbers for one."""
        arrow = [rows(content)] if isinstance(content, range) else content
        writer = pickle.loads(pickle.dumps(self.writer()))
        with task(part, number, **{QUERY_ID: self.query_id, BATCH_ID: str(batch)}):
            written: Written = pickle.loads(pickle.dumps(writer.write(iter(arrow))))
        return written

    def commit(self, batch: int, *winners: Written) -> None:
        self.writer().commit(list(winners), batch)

    def abort(self, batch: int, *messages: Written | None) -> None:
        self.writer().abort(list(messages), batch)

    def write(self, batch: int, values: range) -> None:
        self.commit(batch, self.attempt(batch, values))


def decided(address: str) -> None:
    """Waits until what was committed or aborted is so in every partition."""

    async def work(admin: Admin) -> None:
        async with asyncio.timeout(110):
            while await admin.list_transactions(["PrepareCommit", "PrepareAbort"]):
                await asyncio.sleep(0.01)

    administer(address, work)


def stored(address: str, topic: str = "out") -> list[int]:
    """What a reader with read_committed sees."""
    decided(address)
    return numbers(read(address, subscribe=topic))


def committed(address: str, group: str = "g") -> int:
    decided(address)
    return sum(offset.offset for offset in administer(address, lambda admin: admin.list_offsets(group)).values())


def test_the_rows_of_the_attempts_that_the_commit_names_are_there_once_and_no_others(daemon: DaemonProcess) -> None:
    sink = Sink(daemon.address)
    lost = sink.attempt(0, range(100), part=0, number=0)  # its answer never came: an executor was killed
    first = sink.attempt(0, range(100), part=0, number=1)
    second, copy = (sink.attempt(0, range(100, 150), part=1, number=number) for number in (0, 1))
    empty = sink.attempt(0, range(0), part=2)
    assert stored(daemon.address) == []
    sink.commit(0, first, copy, empty)
    assert stored(daemon.address) == list(range(150))
    assert {each.records.keys() <= {("out", 0), ("out", 1)} for each in (lost, first, second, copy)} == {True}
    assert len({each.membership for each in (lost, first, second, copy)}) == 4
    sink.write(1, range(150, 160))
    assert stored(daemon.address) == list(range(160))


def test_several_topics_are_one_transaction(daemon: DaemonProcess) -> None:
    sink = Sink(daemon.address, topic="")
    written = sink.attempt(0, [rows([1, 2, 3], ["out", "more", "out"])])
    assert (stored(daemon.address), stored(daemon.address, "more")) == ([], [])
    sink.commit(0, written)
    assert (stored(daemon.address), stored(daemon.address, "more")) == ([1, 3], [2])


def test_a_batch_that_is_repeated_after_its_commit_is_dropped(daemon: DaemonProcess) -> None:
    """The driver died when the batch was decided, or the answer was lost; its rows may be others now."""
    sink = Sink(daemon.address)
    sink.write(0, range(10))
    again = sink.attempt(0, range(500, 510))
    assert (again.committed_version, again.membership, again.records) == (0, None, {})
    sink.commit(0, again)
    sink.abort(0, again)
    sink.commit(0, sink.attempt(0, range(0)))
    sink.write(1, range(10, 20))
    assert stored(daemon.address) == list(range(20))


def test_a_driver_that_died_before_the_decision_leaves_attempts_that_do_not_count(daemon: DaemonProcess) -> None:
    sink = Sink(daemon.address)
    sink.attempt(0, range(10))
    again = sink.attempt(0, range(10))
    sink.commit(0, again)
    assert stored(daemon.address) == list(range(10))


def test_an_abort_after_a_commit_that_took_effect_changes_nothing(daemon: DaemonProcess) -> None:
    sink = Sink(daemon.address)
    written = sink.attempt(0, range(10))
    sink.commit(0, written)
    sink.abort(0, written, None)
    assert stored(daemon.address) == list(range(10))


def test_an_aborted_batch_is_written_again_under_its_number(daemon: DaemonProcess, tmp_path: Path) -> None:
    (tmp_path / "metadata").write_text(json.dumps({"id": "q"}))
    sink = Sink(daemon.address, checkpointLocation=f"file://{tmp_path}")
    sink.abort(0, sink.attempt(0, range(10)), None)
    assert open_transactions(daemon.address) == []
    sink.attempt(0, range(10))
    assert open_transactions(daemon.address) == ["spark-q"]
    sink.abort(0, None)  # no task told its transaction; the checkpoint does
    assert open_transactions(daemon.address) == []
    sink.write(0, range(10))
    assert stored(daemon.address) == list(range(10))


def test_an_attempt_that_goes_on_after_the_decision_writes_nothing(daemon: DaemonProcess) -> None:
    sink = Sink(daemon.address, batch_size="2000")

    def zombie() -> Iterator[Any]:
        yield rows(range(1000, 61_000))
        sink.write(0, range(10))
        yield rows(range(61_000, 161_000))

    with pytest.raises((TransactionAbortedError, ProducerFencedError, InvalidTxnStateError)):
        sink.attempt(0, zombie())
    assert stored(daemon.address) == list(range(10))
    assert open_transactions(daemon.address) == []


def test_attempts_of_a_batch_that_another_driver_has_overtaken_are_refused(daemon: DaemonProcess) -> None:
    sink = Sink(daemon.address)
    late = sink.attempt(0, range(10))
    sink.write(1, range(10, 20))
    with pytest.raises(CheckpointError, match="batch 0 is committed, and so are later ones up to batch 1"):
        sink.commit(0, late)
    again = sink.attempt(0, range(10))
    with pytest.raises(CheckpointError, match="the checkpoint is older"):
        sink.commit(0, again)
    assert stored(daemon.address) == list(range(10, 20))


def test_a_transaction_that_timed_out_fails_the_batch_and_its_repetition_succeeds(daemon: DaemonProcess) -> None:
    sink = Sink(daemon.address, transaction_timeout_ms="3000")
    slow = sink.attempt(0, range(10))
    wait(lambda: not open_transactions(daemon.address), "the end of the transaction")
    with pytest.raises(
        TransactionAbortedError, match=r"aborted when its timeout.*A restart of the query writes the batch"
    ):
        sink.commit(0, slow)
    sink.abort(0, slow)
    Sink(daemon.address).write(0, range(10))
    assert stored(daemon.address) == list(range(10))


def test_a_task_that_waits_for_rows_keeps_its_transaction_alive(daemon: DaemonProcess) -> None:
    sink = Sink(daemon.address, transaction_timeout_ms="4000")

    def dawdling() -> Iterator[Any]:
        yield rows(range(10))
        sleep(6)
        yield rows(range(10, 20))

    sink.commit(0, sink.attempt(0, dawdling()))
    assert stored(daemon.address) == list(range(20))


def test_tasks_on_both_sides_of_a_timeout_are_not_committed_together(daemon: DaemonProcess) -> None:
    slow = Sink(daemon.address, transaction_timeout_ms="3000").attempt(0, range(10), part=0)
    wait(lambda: not open_transactions(daemon.address), "the end of the transaction")
    sink = Sink(daemon.address)
    with pytest.raises(TransactionAbortedError, match="different transactions"):
        sink.commit(0, slow, sink.attempt(0, range(10, 20), part=1))
    assert stored(daemon.address) == []


def test_an_id_of_another_query_is_refused_with_what_to_do(daemon: DaemonProcess) -> None:
    Sink(daemon.address, transactional_id="mine").write(3, range(10))
    other = Sink(daemon.address, "other", transactional_id="mine")
    with pytest.raises(InvalidTxnStateError, match=r"scope q up to 3.*give it a transactional\.id that no query had"):
        other.attempt(0, range(10))
    Sink(daemon.address, "other").write(0, range(10, 20))
    assert stored(daemon.address) == list(range(20))


def test_the_daemon_restarts_between_the_attempts_and_the_commit(daemon: DaemonProcess) -> None:
    sink = Sink(daemon.address)

    def interrupted() -> Iterator[Any]:
        yield rows(range(60_000))
        daemon.kill()
        daemon.start()
        yield rows(range(60_000, 120_000))

    written = sink.attempt(0, interrupted())
    daemon.kill()
    daemon.start()
    sink.commit(0, written)
    daemon.kill()
    daemon.start()
    assert stored(daemon.address) == list(range(120_000))


def test_two_writes_of_a_batch_with_one_id_are_told_and_not_dropped(daemon: DaemonProcess) -> None:
    """As in a ``foreachBatch`` that writes to two topics: the second one would be taken for a repetition of the first."""
    given = {"bootstrap.servers": daemon.address, "transactional.id": "keep", "transaction.version": "0"}

    def write(topic: str, values: range, **options: str) -> None:
        writer = CohortDataSource({**given, "topic": topic, **options}).writer(SCHEMA, False)
        with task(0, 0):
            messages = [writer.write(iter([rows(values)] if values else []))]
        try:
            writer.commit(messages)
        except OptionsError:
            writer.abort(messages)
            raise

    write("out", range(10))
    write("out", range(10))  # repeated after a crash
    for values in (range(10), range(0)):
        with pytest.raises(
            OptionsError, match=r"batch 0 .*'keep' was written to topic 'out', .*is to topic 'more': .* of its"
        ):
            write("more", values)
    write("more", range(10), **{"transactional.id": "keep-more"})
    write("more", range(10, 20), **{"transaction.version": "1"})
    assert (stored(daemon.address), stored(daemon.address, "more")) == (list(range(10)), list(range(20)))
    assert open_transactions(daemon.address) == []


def test_an_abort_that_fails_does_not_hide_why_the_batch_failed(
    daemon: DaemonProcess, caplog: pytest.LogCaptureFixture
) -> None:
    """Of an error in ``abort`` Spark makes "Writing job failed", and tells neither that error nor the first one."""
    sink = Sink(daemon.address, request_timeout_ms="500", delivery_timeout_ms="1000")
    written = sink.attempt(0, range(10))
    daemon.kill()
    with pytest.raises(CohortError, match="is a daemon listening there"):
        sink.commit(0, written)
    sink.abort(0, written, None)
    assert "transaction_left_open" in caplog.text
    daemon.start()
    sink.abort(0, written)
    assert open_transactions(daemon.address) == []


def test_a_batch_write_whose_tasks_all_fail_leaves_no_transaction_open(daemon: DaemonProcess) -> None:
    writer = CohortDataSource({"bootstrap.servers": daemon.address, "topic": "out", "delivery": "exactly-once"}).writer(
        SCHEMA, False
    )

    def failing() -> Iterator[Any]:
        yield rows(range(10))
        raise ZeroDivisionError

    with task(0, 0), pytest.raises(ZeroDivisionError):
        writer.write(failing())
    assert len(open_transactions(daemon.address)) == 1
    writer.abort([None])  # as Spark does, which has no message of a task that failed
    assert open_transactions(daemon.address) == []


class TestOffsets:
    """The offsets of the group go with the rows."""

    @pytest.fixture(autouse=True)
    def queries(self) -> Iterator[list[Query]]:
        self.started: list[Query] = []
        yield self.started
        for query in self.started:
            query.reader.stop()

    def query(self, address: str, most: int = 1000) -> Query:
        options = {"subscribe": "in", "startingOffsets": "earliest", "maxOffsetsPerTrigger": str(most)}
        self.started.append(Query(address, None, group_id="g", **options))
        return self.started[-1]

    @pytest.fixture
    def address(self, daemon: DaemonProcess) -> str:
        prepare(daemon.address, {"in": 2}, {"in": 100})
        return daemon.address

    def copy(self, query: Query, sink: Sink, batch: int) -> Written:
        """The tasks of the next batch: what it reads is written."""
        table = query.batch()
        assert table is not None
        return sink.attempt(batch, [rows(numbers(table))])

    def test_they_are_committed_with_the_rows_and_by_nothing_else(self, address: str) -> None:
        query, sink = self.query(address, 40), Sink(address, group_id="g")
        seen: list[int] = []
        for batch in range(3):
            written = self.copy(query, sink, batch)
            assert committed(address) == sum(seen)
            sink.commit(batch, written)
            seen.append(sum(written.records.values()))
            assert committed(address) == sum(seen)
            query.reader.commit(query.at)
        assert query.batch() is None
        assert (committed(address), stored(address)) == (100, list(range(100)))
        sink.commit(3, sink.attempt(3, range(0)))  # a batch without new records, for the state of an aggregation

    def test_a_driver_that_is_started_again_repeats_the_batch(self, address: str) -> None:
        query, sink = self.query(address), Sink(address, group_id="g")
        start = query.at
        died = self.copy(query, sink, 0)
        sink.commit(0, died)
        again = self.query(address)
        again.reader.partitions(start, query.at)
        sink.commit(0, sink.attempt(0, range(100)))
        again.at = query.at
        assert again.batch() is None
        assert (committed(address), stored(address)) == (100, list(range(100)))
        again.reader.stop()

    def test_a_driver_that_died_between_the_offsets_and_the_decision_is_in_nobodys_way(self, address: str) -> None:
        query, sink = self.query(address), Sink(address, group_id="g")
        start = query.at
        died = self.copy(query, sink, 0)
        assert died.transaction is not None
        options = sink_options(sink.options, streaming=True)
        cluster = BlockingCluster(options.connection)
        coordinator = Coordinator(cluster, options, died.transaction)
        coordinator.take_staged("g", coordinator.join(DRIVER))
        cluster.close()
        query.reader.stop()
        again = self.query(address)
        again.reader.prepareForTriggerAvailableNow()
        again.reader.partitions(start, query.at)
        sink.commit(0, sink.attempt(0, range(100)))
        assert (committed(address), stored(address)) == (100, list(range(100)))
        again.reader.stop()

    @pytest.mark.parametrize("first", ["the one that was replaced", "the one that took over"])
    def test_of_two_drivers_on_one_checkpoint_one_commits_the_batch(self, address: str, first: str) -> None:
        query, sink = self.query(address), Sink(address, group_id="g")
        start = query.at
        replaced = self.copy(query, sink, 0)
        if first == "the one that was replaced":
            sink.commit(0, replaced)
        other = self.query(address)
        other.reader.partitions(start, query.at)
        sink.commit(0, sink.attempt(0, range(100)))
        sink.commit(0, replaced)
        prepare(address, {}, {"in": 10})
        with pytest.raises(QueryFencedError):
            query.batch()
        other.at = query.at
        sink.commit(1, self.copy(other, sink, 1))
        assert (committed(address), stored(address)) == (110, sorted([*range(100), *range(10)]))

    def test_a_driver_that_lost_its_group_before_the_commit_fails(self, address: str) -> None:
        query, sink = self.query(address), Sink(address, group_id="g")
        late = self.copy(query, sink, 0)
        self.query(address).plan()
        with pytest.raises(CommitFailedError, match="spark-query"):
            sink.commit(0, late)
        sink.abort(0, late)
        assert (committed(address), stored(address)) == (0, [])

    def test_offsets_that_somebody_moved_fail_the_commit_with_both_numbers(self, address: str) -> None:
        query, sink = self.query(address, 40), Sink(address, group_id="g")
        sink.commit(0, self.copy(query, sink, 0))
        before = stored(address)
        query.reader.stop()
        moved = {TopicPartition("in", 0): 3}
        administer(address, lambda admin: admin.alter_offsets("g", moved))
        again = self.query(address, 40)
        again.at = query.at
        written = self.copy(again, sink, 1)
        with pytest.raises(
            CommitFailedError, match=r"begins at offset \d+ of partition 0 of topic in, but 3 is committed"
        ):
            sink.commit(1, written)
        sink.abort(1, written)
        assert stored(address) == before

    def test_a_checkpoint_that_was_rolled_back_loses_and_doubles_nothing(self, address: str) -> None:
        query, sink = self.query(address, 40), Sink(address, group_id="g")
        old = [query.at]
        for batch in range(2):
            sink.commit(batch, self.copy(query, sink, batch))
            old.append(query.at)
        query.reader.stop()
        before = committed(address), stored(address)
        rolled = self.query(address)
        rolled.at = old[1]  # batch 1 is planned again, and reads all that is there
        dropped = self.copy(rolled, sink, 1)
        assert dropped.membership is None
        sink.commit(1, dropped)
        prepare(address, {}, {"in": 10})
        with pytest.raises(CommitFailedError, match="is committed"):
            sink.commit(2, self.copy(rolled, sink, 2))
        assert (committed(address), stored(address)) == before
        rolled.reader.stop()
        older = self.query(address)
        older.at = old[0]
        with pytest.raises(CheckpointError, match="up to batch 1"):
            sink.commit(0, self.copy(older, sink, 0))
        assert (committed(address), stored(address)) == before

    def test_without_a_source_of_that_group_the_commit_says_so(self, address: str) -> None:
        sink = Sink(address, group_id="unknown")
        written = sink.attempt(0, range(3))
        with pytest.raises(CommitFailedError, match=r"the source needs the same group\.id"):
            sink.commit(0, written)
        sink.abort(0, written)
        assert stored(address) == []


def test_batch_jobs_are_one_transaction_and_versions_are_written_once(daemon: DaemonProcess) -> None:
    def job(values: range, attempts: int = 1, abort: bool = False, **options: str) -> None:
        given = {"bootstrap.servers": daemon.address, "topic": "out", "delivery": "exactly-once"}
        given |= {name.replace("_", "."): value for name, value in options.items()}
        writer = CohortDataSource(given).writer(SCHEMA, False)
        messages = []
        for number in range(attempts):
            with task(0, number):
                messages.append(pickle.loads(pickle.dumps(writer)).write(iter([rows(values)])))
        (writer.abort if abort else writer.commit)(messages[-1:])

    job(range(10), attempts=3)
    job(range(10, 20), abort=True)
    assert stored(daemon.address) == list(range(10))
    for _ in range(2):
        job(range(10, 20), transactional_id="mine", transaction_version="7")
    job(range(10, 20), transactional_id="mine", transaction_version="6")
    job(range(20, 30), transactional_id="mine", transaction_version="8")
    assert stored(daemon.address) == list(range(30))
    with pytest.raises(OptionsError, match=r"transactional\.id needs transaction\.version"):
        job(range(1), transactional_id="mine")


def open_transactions(address: str) -> list[str]:
    found = administer(address, lambda admin: admin.list_transactions(["Ongoing"]))
    return [each.transactional_id for each in found]
