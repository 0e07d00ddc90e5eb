"""Exactly once as the default: a batch that is planned otherwise than the one of its number that is committed."""

from __future__ import annotations

import json
import shutil
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from random import Random
from time import sleep
from typing import Any

import pytest

from client import CommitFailedError
from client.errors import CohortError, RequestTimedOutError
from client.spark.errors import CheckpointError, OptionsError, QueryFencedError
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

    def has(self, batch: int) -> bool:
        return (self.path / "offsets" / str(batch)).exists()

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


REFUSED = (CohortError, CheckpointError)
"""What a driver is told when another one has gone on in its place."""


class Copy:
    """A driver with a checkpoint of its own: runs batches until it fails."""

    one_task = threading.Lock()
    """Spark's ``TaskContext`` is one for this process."""

    def __init__(self, address: str, checkpoint: Checkpoint, at: dict[str, Any] | None, batch: int) -> None:
        self.address, self.checkpoint, self.batch = address, checkpoint, batch
        options = {"subscribe": "in", "startingOffsets": "earliest"}
        self.query = Query(address, at, group_id="g", **options)
        self.sink = checkpoint.sink(address, group_id="g", delivery_timeout_ms="30000")
        self.error: CohortError | CheckpointError | None = None

    def plan(self) -> dict[str, Any] | None:
        """Where the next batch ends; what the checkpoint has for it counts, as for Spark."""
        if self.checkpoint.has(self.batch):
            (end,) = self.checkpoint.planned(self.batch)
            return dict(end)
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
        except REFUSED:
            self.sink.abort(self.batch, written)
            raise
        self.query.at, self.batch = end, self.batch + 1

    def run(self, pause: Callable[[str], object], batches: int = 5) -> None:
        """``pause`` is called before each step, with its name."""
        try:
            while batches:
                pause("plan")
                end = self.plan()
                if end is None:
                    return
                batches -= 1
                pause("write")
                written = self.write(end)
                pause("commit")
                self.commit(end, written)
        except REFUSED as error:
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


@pytest.mark.parametrize(
    ("moment", "told"), [("plan", CheckpointError), ("write", QueryFencedError), ("commit", CheckpointError)]
)
def test_a_driver_that_another_one_overtakes_at_any_step_is_told(
    daemon: DaemonProcess, tmp_path: Path, moment: str, told: type[Exception]
) -> None:
    """The other one has a copy of the checkpoint, and reads more rows as the same batch."""
    checkpoint = Checkpoint(tmp_path / "c")
    twin = checkpoint.copy(tmp_path / "d")
    run(produce(daemon.address, "in", range(10)))
    overtaken, other = (Copy(daemon.address, each, None, 0) for each in (checkpoint, twin))

    def overtake(step: str) -> None:
        if step == moment:
            run(produce(daemon.address, "in", range(10, 15)))
            other.run(lambda _: None, batches=1)
            run(produce(daemon.address, "in", range(15, 20)))

    overtaken.run(overtake)
    assert (type(overtaken.error), other.error) == (told, None)
    assert (stored(daemon.address), committed(daemon.address)) == (list(range(15)), 15)
    rest = Copy(daemon.address, other.checkpoint, other.query.at, other.batch)
    rest.run(lambda _: None)
    assert rest.error is None
    assert (stored(daemon.address), committed(daemon.address)) == (list(range(20)), 20)


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
        produced = at_once(copies, random, range(produced + 10, produced + 1_000_000, 5), meet=number == 0)
        seen = stored(daemon.address)
        assert len(seen) == len(set(seen)) == committed(daemon.address), [copy.error for copy in copies]
        failed += sum(copy.error is not None for copy in copies)
        newest = max(copies, key=lambda copy: copy.batch)
        rest = Copy(daemon.address, newest.checkpoint, newest.query.at, newest.batch)
        rest.run(dawdling(random), batches=1_000)
        checkpoint, at, batch = rest.checkpoint, rest.query.at, rest.batch
        assert rest.error is None, rest.error
        assert stored(daemon.address) == list(range(produced))
        assert committed(daemon.address) == produced
    assert failed, "the two that planned before either wrote cannot both own the group"


def at_once(copies: Sequence[Copy], random: Random, starts: range, *, meet: bool) -> int:
    """Runs two drivers to their ends, and feeds them meanwhile, so that what they plan differs; returns what comes next.

    With ``meet`` they wait for each other when they have planned their first batch and not yet written.
    """
    both_planned = threading.Barrier(2, timeout=60)
    if not meet:
        both_planned.abort()

    def drive(copy: Copy, random: Random) -> None:
        try:
            copy.run(dawdling(random, both_planned))
        finally:
            both_planned.abort()

    with ThreadPoolExecutor(2) as threads:
        running = [threads.submit(drive, copy, Random(random.random())) for copy in copies]
        for start in starts:
            if all(each.done() for each in running):
                break
            run(produce(copies[0].address, "in", range(start, start + starts.step)))
    for each in running:
        each.result()
    return start


def dawdling(random: Random, both_planned: threading.Barrier | None = None) -> Callable[[str], None]:
    """Pauses of some milliseconds before each step, and the one at which two drivers meet."""

    def pause(step: str) -> None:
        sleep(random.random() / (15 if step == "plan" else 30))
        if step == "write" and both_planned is not None:
            with suppress(threading.BrokenBarrierError):
                both_planned.wait()
                both_planned.abort()

    return pause


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
        Query(daemon.address, None, request_timeout_ms="3000", **given)
    with ThreadPoolExecutor(1) as thread:
        beginning = thread.submit(Query, daemon.address, None, **given)
        sleep(0.3)
        assert not beginning.done()
        members = [written.membership.producer_id, driver.producer_id]
        coordinator.end(driver.transaction, members, committed=True)
        cluster.close()
        began = beginning.result(100)
    assert began.at["in"] == end["in"]
    for query in (first.query, began):
        query.reader.stop()
