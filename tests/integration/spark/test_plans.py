"""Exactly once as the default: a batch that is planned otherwise than the one of its number that is committed."""

from __future__ import annotations

import json
import shutil
import threading
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from random import Random
from time import sleep
from typing import Any

import pytest

from client import CommitFailedError
from client.errors import CohortError, RequestTimedOutError
from client.spark.errors import CheckpointError, OptionsError
from client.spark.options import sink_options
from client.spark.sink import Written
from client.spark.source import CohortDataSource
from client.spark.tasks.blocking_cluster import BlockingCluster
from client.spark.transaction import DRIVER, Coordinator
from tests.daemon_process import DaemonProcess
from tests.integration.spark.calls import Query, numbers, prepare, produce, run, tasks
from tests.integration.spark.test_exactly_once import SCHEMA, Sink, committed, open_transactions, rows, stored

NOTES = json.dumps({"batchWatermarkMs": 0, "batchTimestampMs": 1})


@pytest.fixture
def daemon(tmp_path: Path) -> Iterator[DaemonProcess]:
    with DaemonProcess(tmp_path / "data") as started:
        prepare(started.address, {"out": 2, "in": 2})
        yield started


class Checkpoint:
    """The directory of a query's checkpoint, as Spark writes it."""

    def __init__(self, path: Path) -> None:
        self.path = path
        (path / "offsets").mkdir(parents=True)
        (path / "metadata").write_text('{"id":"q"}')

    def plan(self, batch: int, *ends: Any) -> None:
        """What Spark does before a batch runs. One that is there is left alone."""
        file = self.path / "offsets" / str(batch)
        if not file.exists():
            file.write_text("\n".join(["v1", NOTES, *map(json.dumps, ends)]))

    def planned(self, batch: int) -> list[Any]:
        """What is planned for a batch."""
        return [json.loads(line) for line in (self.path / "offsets" / str(batch)).read_text().splitlines()[2:]]

    def forget(self, batch: int) -> None:
        (self.path / "offsets" / str(batch)).unlink()

    def copy(self, path: Path) -> Checkpoint:
        copied = Checkpoint(path)
        shutil.copytree(self.path, path, dirs_exist_ok=True)
        return copied

    def sink(self, address: str, **options: str) -> Sink:
        sink = Sink(address, checkpointLocation=f"file://{self.path}", **options)
        del sink.options["delivery"]
        return sink


def test_a_batch_that_is_planned_anew_is_dropped_only_if_it_is_the_same(daemon: DaemonProcess, tmp_path: Path) -> None:
    checkpoint = Checkpoint(tmp_path / "c")
    sink = checkpoint.sink(daemon.address)
    checkpoint.plan(0, {"rows": 10}, 5)
    sink.write(0, range(10))
    sink.write(0, range(10))  # repeated after a crash
    checkpoint.forget(0)
    checkpoint.plan(0, {"rows": 10}, 5)  # no row has come meanwhile
    sink.write(0, range(10))
    checkpoint.forget(0)
    checkpoint.plan(0, {"rows": 20}, 5)
    for _ in range(2):
        again = sink.attempt(0, range(20))
        with pytest.raises(CheckpointError, match=r'planned up to {"rows": 10} 5 #.* plans it up to {"rows": 20} 5 #'):
            sink.commit(0, again)
        sink.abort(0, again)
    empty = sink.attempt(0, range(0))
    with pytest.raises(CheckpointError, match="begin a new one"):
        sink.commit(0, empty)
    assert (stored(daemon.address), open_transactions(daemon.address)) == (list(range(10)), [])
    checkpoint.plan(1, {"rows": 30}, 5)
    sink.write(1, range(10, 20))
    assert stored(daemon.address) == list(range(20))


def test_of_two_plans_at_once_one_is_committed_and_the_other_is_told(daemon: DaemonProcess, tmp_path: Path) -> None:
    here = Checkpoint(tmp_path / "here")
    there = here.copy(tmp_path / "there")
    ours, theirs = here.sink(daemon.address), there.sink(daemon.address)
    here.plan(0, {"rows": 10})
    there.plan(0, {"rows": 20})
    first, second = ours.attempt(0, range(10)), theirs.attempt(0, range(20))
    theirs.commit(0, second)
    with pytest.raises(CheckpointError, match="another driver has gone on with a copy"):
        ours.commit(0, first)
    ours.abort(0, first)
    assert stored(daemon.address) == list(range(20))


def test_a_default_that_nothing_can_compare_is_refused_with_what_to_do(daemon: DaemonProcess, tmp_path: Path) -> None:
    given = {"bootstrap.servers": daemon.address, "topic": "out"}
    remote = {**given, "checkpointLocation": "s3a://bucket/checkpoint"}
    for options, said in (
        (given, "it is not given"),
        (remote, "s3a://bucket/checkpoint is not in files of the driver"),
    ):
        with pytest.raises(OptionsError, match=said) as refused:
            CohortDataSource(options).streamWriter(SCHEMA, False)
        for way in ("same group.id", "delivery=exactly-once yourself", "delivery=at-least-once"):
            assert way in str(refused.value)
        for more in ({"group.id": "g"}, {"delivery": "exactly-once"}, {"delivery": "at-least-once"}):
            CohortDataSource({**options, **more}).streamWriter(SCHEMA, False)
    local = {**given, "checkpointLocation": str(Checkpoint(tmp_path / "c").path)}
    CohortDataSource(local).streamWriter(SCHEMA, False)


class Copy:
    """A driver with a checkpoint of its own: runs batches until it fails."""

    one_task = threading.Lock()
    """Spark's ``TaskContext`` is one for this process."""

    def __init__(self, address: str, checkpoint: Checkpoint, at: dict[str, Any] | None, batch: int) -> None:
        self.checkpoint, self.batch = checkpoint, batch
        options = {"subscribe": "in", "startingOffsets": "earliest"}
        self.query = Query(address, at, group_id="g", **options)
        self.sink = checkpoint.sink(address, group_id="g", delivery_timeout_ms="3000")
        self.error: Exception | None = None

    def plan(self) -> dict[str, Any] | None:
        """The next batch; one that is planned already is repeated as it was planned, as Spark does."""
        if (self.checkpoint.path / "offsets" / str(self.batch)).exists():
            (planned,) = self.checkpoint.planned(self.batch)
            return dict(planned)
        end = self.query.plan()
        if end == self.query.at:
            return None
        self.checkpoint.plan(self.batch, end)
        return end

    def write(self, end: dict[str, Any]) -> Written:
        table = tasks(self.query.reader, self.query.reader.partitions(self.query.at, end))
        with self.one_task:
            return self.sink.attempt(self.batch, [rows(numbers(table))])

    def commit(self, end: dict[str, Any], written: Written) -> None:
        try:
            self.sink.commit(self.batch, written)
        except (CohortError, CheckpointError):
            self.sink.abort(self.batch, written)
            raise
        self.query.at, self.batch = end, self.batch + 1

    def run(self, random: Random, batches: int = 5) -> None:
        try:
            sleep(random.random() / 15)
            while batches and (end := self.plan()) is not None:
                batches -= 1
                sleep(random.random() / 30)
                written = self.write(end)
                sleep(random.random() / 30)
                self.commit(end, written)
        except (CohortError, CheckpointError) as error:
            self.error = error
        finally:
            self.query.reader.stop()


def test_a_stage_of_another_driver_is_not_taken(daemon: DaemonProcess, tmp_path: Path) -> None:
    """It plans the same batch with more rows, and has the group when the first one commits."""
    prepare(daemon.address, {}, {"in": 20})
    checkpoint = Checkpoint(tmp_path / "c")
    first = Copy(daemon.address, checkpoint, None, 0)
    start = first.query.at
    end = first.plan()
    assert end is not None
    written = first.write(end)
    prepare(daemon.address, {}, {"in": 10})
    second = Copy(daemon.address, checkpoint.copy(tmp_path / "d"), start, 0)
    second.checkpoint.forget(0)
    other = second.plan()
    assert other is not None
    assert other != end
    second.query.reader.partitions(start, other)
    with pytest.raises(CommitFailedError, match="another program has staged a batch of its own"):
        first.commit(end, written)
    assert (stored(daemon.address), committed(daemon.address)) == ([], 0)
    second.commit(other, second.write(other))
    assert (stored(daemon.address), committed(daemon.address)) == (sorted([*range(20), *range(10)]), 30)
    for copy in (first, second):
        copy.query.reader.stop()


def test_two_drivers_started_at_once_on_a_checkpoint_and_its_copy_write_each_row_once(
    daemon: DaemonProcess, tmp_path: Path
) -> None:
    random = Random(11)
    checkpoint, at, batch, produced = Checkpoint(tmp_path / "c"), None, 0, 0
    failed = 0
    for number in range(4):
        run(produce(daemon.address, "in", range(produced, produced + 10)))
        twin = checkpoint.copy(tmp_path / f"copy-{number}")
        copies = [Copy(daemon.address, each, at, batch) for each in (checkpoint, twin)]
        threads = [threading.Thread(target=copy.run, args=(Random(random.random()),)) for copy in copies]
        for thread in threads:
            thread.start()
        produced += 10
        while any(thread.is_alive() for thread in threads):  # what they plan differs
            run(produce(daemon.address, "in", range(produced, produced + 5)))
            produced += 5
        for thread in threads:
            thread.join(60)
            assert not thread.is_alive()
        seen = stored(daemon.address)
        assert len(seen) == len(set(seen)) == committed(daemon.address), [copy.error for copy in copies]
        failed += sum(copy.error is not None for copy in copies)
        newest = max(copies, key=lambda copy: copy.batch)
        checkpoint, at, batch = newest.checkpoint, newest.query.at, newest.batch
        rest = Copy(daemon.address, checkpoint, at, batch)
        with suppress(CohortError, CheckpointError):
            rest.run(random, batches=1_000)
        checkpoint, at, batch = rest.checkpoint, rest.query.at, rest.batch
        assert rest.error is None, rest.error
        assert stored(daemon.address) == list(range(produced))
        assert committed(daemon.address) == produced
    assert failed, "the drivers never met"


def test_a_query_that_begins_at_committed_offsets_waits_for_the_transaction_that_moves_them(
    daemon: DaemonProcess, tmp_path: Path
) -> None:
    prepare(daemon.address, {}, {"in": 20})
    first = Copy(daemon.address, Checkpoint(tmp_path / "c"), None, 0)
    end = first.plan()
    assert end is not None
    written = first.write(end)
    assert written.transaction is not None
    options = sink_options(first.sink.options, streaming=True)
    cluster = BlockingCluster(options.connection)
    coordinator = Coordinator(cluster, options, written.transaction)
    assert written.membership is not None
    driver = coordinator.join(DRIVER)
    coordinator.take_staged("g", driver)
    given = {"subscribe": "in", "startingOffsets": "committed", "group_id": "g"}
    with pytest.raises(RequestTimedOutError, match=r"which an open transaction may change \(cohort transactions list"):
        Query(daemon.address, None, request_timeout_ms="300", **given)
    began: list[Query] = []
    waiting = threading.Thread(target=lambda: began.append(Query(daemon.address, None, **given)))
    waiting.start()
    sleep(0.3)
    assert not began
    members = [written.membership.producer_id, driver.producer_id]
    coordinator.end(driver.transaction, members, committed=True)
    cluster.close()
    waiting.join(20)
    assert began[0].at["in"] == end["in"]
    for query in (first.query, *began):
        query.reader.stop()
