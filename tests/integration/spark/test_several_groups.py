"""One query with several sources, each with a group: all offsets are in the decision about the batch."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from client import CommitFailedError
from client.spark.positions import Positions
from client.spark.sink import Written
from protocol.subscription import TopicPartition
from tests.daemon_process import DaemonProcess
from tests.integration.spark.calls import Query, administer, numbers, prepare, tasks
from tests.integration.spark.test_exactly_once import committed, open_transactions, rows, stored
from tests.integration.spark.test_plans import Checkpoint

GROUPS = "a", "b"


@pytest.fixture
def daemon(tmp_path: Path) -> Iterator[DaemonProcess]:
    with DaemonProcess(tmp_path / "data") as started:
        prepare(started.address, {"a": 2, "b": 1, "out": 2}, {"a": 60, "b": 25})
        yield started


class Union:
    """The union of topics ``a`` and ``b``, read as groups ``a`` and ``b``, as Spark runs it."""

    def __init__(self, address: str, checkpoint: Checkpoint, most: int = 1000) -> None:
        limit = {"startingOffsets": "earliest", "maxOffsetsPerTrigger": str(most)}
        self.queries = [Query(address, None, subscribe=group, group_id=group, **limit) for group in GROUPS]
        self.checkpoint = checkpoint
        self.sink = checkpoint.sink(address, group_id="b, a")
        self.batch = 0

    def write(self) -> Written:
        """Plans the next batch and runs its tasks. A source without anything new is not asked for ranges."""
        ends = [query.plan() for query in self.queries]
        self.checkpoint.plan(self.batch, *ends)
        return self.repeat()

    def repeat(self) -> Written:
        """Runs a batch as its plan says."""
        ends = self.checkpoint.planned(self.batch)
        values: list[int] = []
        for query, end in zip(self.queries, ends, strict=True):
            if end != query.at or self.batch == 0:
                values += numbers(tasks(query.reader, query.reader.partitions(query.at, end)))
        self.ends = ends
        return self.sink.attempt(self.batch, [rows(values)])

    def planned(self) -> tuple[int, ...]:
        """How many records the groups have read when this batch is committed."""
        positions = [Positions.from_json(end).offsets.values() for end in self.ends]
        return tuple(sum(offsets) for offsets in positions)

    def commit(self, written: Written) -> None:
        self.sink.commit(self.batch, written)
        self.batch += 1
        for query, end in zip(self.queries, self.ends, strict=True):
            query.at = end

    def stop(self) -> None:
        for query in self.queries:
            query.reader.stop()


def reached(address: str) -> tuple[int, int]:
    return committed(address, "a"), committed(address, "b")


def test_the_offsets_of_all_groups_go_with_the_rows(daemon: DaemonProcess, tmp_path: Path) -> None:
    union = Union(daemon.address, Checkpoint(tmp_path / "c"), most=40)
    seen = []
    for _ in range(2):  # the second batch has nothing of b
        written = union.write()
        before = reached(daemon.address)
        union.commit(written)
        assert reached(daemon.address) == union.planned()
        assert sum(written.records.values()) == sum(union.planned()) - sum(before)
        seen.append(union.planned())
    assert seen[0][0] < seen[1][0] == 60
    assert seen[0][1] == seen[1][1] == 25
    assert stored(daemon.address) == sorted([*range(60), *range(25)])
    prepare(daemon.address, {}, {"b": 5})  # now nothing of a
    union.commit(union.write())
    assert reached(daemon.address) == (60, 30)
    assert stored(daemon.address) == sorted([*range(60), *range(25), *range(5)])
    assert open_transactions(daemon.address) == []
    union.stop()


def test_a_driver_that_dies_before_and_after_the_decision_loses_and_doubles_nothing(
    daemon: DaemonProcess, tmp_path: Path
) -> None:
    checkpoint = Checkpoint(tmp_path / "c")
    died = Union(daemon.address, checkpoint, most=40)
    died.write()
    again = Union(daemon.address, checkpoint, most=40)
    written = again.repeat()
    again.sink.commit(0, written)
    daemon.kill()
    daemon.start()
    once_more = Union(daemon.address, checkpoint, most=40)
    dropped = once_more.repeat()
    assert dropped.membership is None
    once_more.commit(dropped)
    assert reached(daemon.address) == once_more.planned()
    once_more.commit(once_more.write())
    assert reached(daemon.address) == (60, 25)
    assert stored(daemon.address) == sorted([*range(60), *range(25)])
    for union in (died, again, once_more):
        union.stop()


def test_one_group_that_does_not_fit_keeps_the_others_and_the_rows_back(daemon: DaemonProcess, tmp_path: Path) -> None:
    union = Union(daemon.address, Checkpoint(tmp_path / "c"), most=40)
    union.commit(union.write())
    before = reached(daemon.address), stored(daemon.address)
    prepare(daemon.address, {}, {"b": 5})
    written = union.write()
    union.stop()
    administer(daemon.address, lambda admin: admin.alter_offsets("b", {TopicPartition("b", 0): 3}))
    taking_over = Union(daemon.address, Checkpoint(tmp_path / "d"))
    taking_over.write()
    with pytest.raises(CommitFailedError, match=r"group '[ab]' cannot go with it"):
        union.sink.commit(1, written)
    union.sink.abort(1, written)
    assert (committed(daemon.address, "a"), stored(daemon.address)) == (before[0][0], before[1])
    assert committed(daemon.address, "b") == 3
    taking_over.stop()


def test_a_source_that_the_sink_does_not_name_leaves_its_offsets_to_itself(
    daemon: DaemonProcess, tmp_path: Path
) -> None:
    union = Union(daemon.address, Checkpoint(tmp_path / "c"))
    union.sink.options["group.id"] = "a"
    union.commit(union.write())
    assert reached(daemon.address) == (60, 0)
    union.write()  # Spark asks how far the next batch goes: the one before is complete
    assert reached(daemon.address) == (60, 25)
    union.stop()
