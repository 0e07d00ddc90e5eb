"""Checkpoints that are not in files of the driver: the source tells the sink of its own driver what it has planned."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import pytest

from client import CommitFailedError
from client.spark.options import sink_options
from client.spark.plan import plan_told
from client.spark.sink import Written
from client.spark.tasks.blocking_cluster import BlockingCluster
from client.spark.transaction import DRIVER, Coordinator
from tests.daemon_process import DaemonProcess
from tests.integration.spark.calls import Query, numbers, prepare, tasks
from tests.integration.spark.test_exactly_once import Sink, committed, open_transactions, rows, stored


@pytest.fixture
def address(tmp_path: Path) -> Iterator[str]:
    with DaemonProcess(tmp_path / "data") as daemon:
        prepare(daemon.address, {"out": 2, "in": 2}, {"in": 20})
        yield daemon.address


class Driver:
    """A driver on a checkpoint in ``s3a:``, or on a copy of it; ``begin`` is where its first batch begins."""

    def __init__(self, address: str, directory: Path, monkeypatch: pytest.MonkeyPatch, begin: Any = None) -> None:
        self._local = directory / f"blockmgr-{len(list(directory.iterdir()))}"
        self._local.mkdir()
        self._monkeypatch = monkeypatch
        checkpoint = "s3a://bucket/checkpoint"
        self.sink = Sink(address, group_id="g", checkpointLocation=checkpoint, delivery_timeout_ms="10000")
        del self.sink.options["delivery"]
        with self:
            self.query = Query(address, begin, subscribe="in", startingOffsets="earliest", group_id="g")

    def __enter__(self) -> None:
        """What runs now is a process of this driver."""
        self._monkeypatch.setenv("SPARK_LOCAL_DIRS", f"{self._local},{self._local}-2")

    def __exit__(self, *_: object) -> None:
        self._monkeypatch.delenv("SPARK_LOCAL_DIRS")

    def write(self, batch: int, end: Any = None) -> tuple[Any, Written]:
        """Plans a batch, or repeats the one that ends at ``end``, and runs its tasks."""
        with self:
            end = end or self.query.plan()
            values = numbers(tasks(self.query.reader, self.query.reader.partitions(self.query.at, end)))
            return end, self.sink.attempt(batch, [rows(values)])

    def commit(self, batch: int, written: Written) -> None:
        with self:
            self.sink.commit(batch, written)

    @contextmanager
    def deciding(self, written: Written) -> Iterator[None]:
        """The commit up to the decision, which follows when the block ends without an error."""
        assert written.transaction is not None
        assert written.membership is not None
        options = sink_options(self.sink.options, streaming=True)
        cluster = BlockingCluster(options.connection)
        try:
            with self:
                plan = plan_told("g")
            assert plan is not None
            coordinator = Coordinator(cluster, options, written.transaction)
            driver = coordinator.join(f"{DRIVER} {plan.digest}")
            coordinator.take_staged("g", driver, plan)
            yield
            members = [written.membership.producer_id, driver.producer_id]
            coordinator.end(driver.transaction, members, committed=True)
        finally:
            cluster.close()

    def stop(self) -> None:
        self.query.reader.stop()


@pytest.fixture
def two(address: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[tuple[Driver, Driver, Written]]:
    """A driver that has written batch 0, and another one that plans more for the same batch, with what the first wrote."""
    local = tmp_path / "local"
    local.mkdir()
    first = Driver(address, local, monkeypatch)
    _, written = first.write(0)
    prepare(address, {}, {"in": 10})
    second = Driver(address, local, monkeypatch, first.query.at)
    yield first, second, written
    first.stop()
    second.stop()


def test_the_stage_of_another_driver_is_not_taken(address: str, two: tuple[Driver, Driver, Written]) -> None:
    first, second, written = two
    _, more = second.write(0)
    with pytest.raises(CommitFailedError, match="another program has staged a batch of its own"):
        first.commit(0, written)
    assert (stored(address), committed(address)) == ([], 0)
    second.commit(0, more)
    assert (stored(address), committed(address)) == (sorted([*range(20), *range(10)]), 30)


def test_what_was_taken_is_not_replaced_by_the_stage_of_another_driver(
    address: str, two: tuple[Driver, Driver, Written]
) -> None:
    first, second, written = two
    with first.deciding(written):
        _, more = second.write(0)
        with pytest.raises(CommitFailedError, match="has a pending offset of producer"):
            second.commit(0, more)
    assert (stored(address), committed(address)) == (list(range(20)), 20)


def test_a_driver_that_is_started_again_takes_the_place_of_the_one_that_died(
    address: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    local = tmp_path / "local"
    local.mkdir()
    died = Driver(address, local, monkeypatch)
    end, written = died.write(0)
    with suppress(KeyboardInterrupt), died.deciding(written):
        raise KeyboardInterrupt
    again = Driver(address, local, monkeypatch, died.query.at)
    _, repeated = again.write(0, end)
    again.commit(0, repeated)
    assert (stored(address), committed(address), open_transactions(address)) == (list(range(20)), 20, [])
    died.stop()
    again.stop()


def test_a_batch_that_is_repeated_without_its_source_takes_no_offsets_of_another_driver(
    address: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Spark asks no source of which the batch reads nothing."""
    local = tmp_path / "local"
    local.mkdir()
    died = Driver(address, local, monkeypatch)
    died.query.at, written = died.write(0)
    died.commit(0, written)
    with died:
        assert died.query.plan()["in"] == died.query.at["in"]
    died.stop()
    again = Driver(address, local, monkeypatch, died.query.at)
    with again:
        nothing = again.sink.attempt(1, range(0))
    again.commit(1, nothing)
    prepare(address, {}, {"in": 5})
    other = Driver(address, local, monkeypatch, died.query.at)
    other.write(2)
    with again:
        nothing = again.sink.attempt(2, range(0))
    with pytest.raises(CommitFailedError, match="another program has staged a batch of its own"):
        again.commit(2, nothing)
    assert (stored(address), committed(address)) == (list(range(20)), 20)
    again.stop()
    other.stop()
