"""What may happen to a query that is exactly once, on a cluster of two workers with speculation: a test for each row.

Each compares all records that a reader with read_committed sees, and the offsets of the group, with what was fed. The second
pass, see ``blow`` in conftest, strikes at the worst moment of each row once more, with SIGKILL for the daemon or the driver.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import pytest

from protocol.messages import ApiKey
from tests.integration.hostile_proxy import Malice
from tests.integration.spark.cluster import end, executors, parent
from tests.integration.spark.ground import BATCH, Ground, Row, answers_lost
from tests.integration.spark.points import wait

pytestmark = [pytest.mark.spark, pytest.mark.timeout(900)]

ALL = 2 * BATCH
"""Two batches, 0 and 1: the first is left alone where the trouble is one of the driver."""


@pytest.fixture(scope="module")
def ground(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Ground]:
    with Ground(tmp_path_factory.mktemp("ground")) as started:
        yield started


@pytest.fixture
def row(ground: Ground, request: pytest.FixtureRequest) -> Row:
    """A query of its own for each test, over two batches of records."""
    name = re.sub(r"\W+", "-", request.node.name.removeprefix("test_")).strip("-").replace("_", "-")
    made = ground.row(name)
    made.feed(ALL)
    return made


def test_task_fails_after_writing(ground: Ground, row: Row) -> None:
    row.points.set("written 0", "fail")
    assert ground.driver.run(row.order()) is None
    row.has_copied(ALL)
    assert row.written() > ALL, "the attempt that failed has written, and its rows are aborted"


def test_speculation(ground: Ground, row: Row) -> None:
    row.points.set("written 0")
    assert ground.driver.run(row.order()) is None, "a copy on the other host overtakes the task that is held"
    row.points.reached("written 0")
    row.has_copied(ALL)
    assert row.written() > ALL
    row.points.release("written 0")


def test_executor_killed_and_back(ground: Ground, row: Row) -> None:
    driver = ground.driver
    row.points.set("written 0")
    driver.start(row.order())
    before = executors(ground.workers, driver.app)
    killed = parent(parent(row.points.reached("written 0", alive=driver.check)))
    assert killed in before
    end(killed)
    assert driver.ended(row.name) is None
    row.has_copied(ALL)
    assert row.written() > ALL
    wait(lambda: len(set(executors(ground.workers, driver.app)) - {killed}) == 2, "the executor that comes back")
    row.points.release("written 0")


def test_zombie_task_after_the_decision(ground: Ground, row: Row) -> None:
    """One has written to the partitions where it goes on, and its transaction is closed there; one has written to none,
    and is refused when its leader asks the coordinator."""
    for part in (0, 1):
        row.points.set(f"written {part}", "zombie")
    widened = f"concat(string(value), repeat(' ', IF(partition = 0, {5_000_000 // (BATCH // 2)}, 0))) AS value"
    order = row.order()._replace(columns=["key", widened])
    assert ground.driver.run(order) is None
    for part in (0, 1):
        file = row.points.directory / f"written {part}.zombie.taken"
        row.points.reached(f"written {part}", "zombie")
        told = file.with_suffix(".ended")
        file.unlink()
        wait(told.exists, f"the end of the zombie of part {part}")
        assert re.match(r"(ProducerFenced|TransactionAborted|InvalidTxnState)\w*Error: ", told.read_text())
    row.has_copied(ALL)


class Killed(NamedTuple):
    """Queries of a driver that was killed, by what it was about to do, and their order."""

    joined: Row
    late: Row
    decided: Row
    lost: Row


@pytest.fixture(scope="module")
def killed(ground: Ground, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Killed]:
    """One driver with a query at each of these moments of batch 1, which is killed."""
    malice = Malice(answer_lost=1.0, kinds=frozenset({ApiKey.END_TXN}))
    with answers_lost(tmp_path_factory.mktemp("lost"), Malice()) as (address, proxy, end_malice):
        rows = [ground.row(name) for name in ("joined", "late", "decided")]
        rows.append(Row(ground.directory / "lost", address, "lost"))
        driver = ground.driver
        for row in rows:
            row.feed(ALL)
            row.points.set("after 1" if row.name == "decided" else "before 1")
            driver.start(row.order(transaction_timeout_ms="3000" if row.name == "late" else "600000"))
        for row in rows:
            row.points.reached("after 1" if row.name == "decided" else "before 1", alive=driver.check)
        proxy.malice = malice
        rows[-1].points.release("before 1")
        wait(lambda: proxy.done.get("answer_lost"), "the answer that is lost")
        ground.kill_driver()
        end_malice()
        yield Killed(*rows)


def test_driver_dies_before_the_decision_and_attempts_join_the_open_transaction(ground: Ground, killed: Killed) -> None:
    row = killed.joined
    assert row.committed() == BATCH
    before = row.described()
    assert (before.state, before.version, before.committed_version) == ("Ongoing", 1, 0)
    assert ground.driver.run(row.order()) is None
    after = row.described()
    row.has_copied(ALL)
    assert row.written() > ALL
    assert (after.producer_id, after.producer_epoch) == (before.producer_id, before.producer_epoch + 1)
    assert after.previous_outcome == "committed"


def test_driver_dies_before_the_decision_and_the_timeout_ends_its_transaction(ground: Ground, killed: Killed) -> None:
    row = killed.late
    wait(lambda: not row.transaction(), "the end of the transaction")
    assert (row.committed(), len(row.stored())) == (BATCH, BATCH)
    assert ground.driver.run(row.order()) is None
    row.has_copied(ALL)
    assert row.written() > ALL


def test_driver_dies_after_the_decision(ground: Ground, killed: Killed) -> None:
    row = killed.decided
    row.has_copied(ALL)
    assert ground.driver.run(row.order()) is None
    row.has_copied(ALL)
    row.feed(BATCH)
    assert ground.driver.run(row.order()) is None
    row.has_copied(ALL + BATCH)


def test_the_answer_is_lost_and_the_driver_dies(ground: Ground, killed: Killed) -> None:
    row = killed.lost
    row.has_copied(ALL)
    assert ground.driver.run(row.order()) is None
    row.has_copied(ALL)


def test_the_answer_is_lost(ground: Ground, tmp_path: Path) -> None:
    """The driver asks again, and is told what was decided."""
    malice = Malice(answer_lost=1.0, kinds=frozenset({ApiKey.END_TXN}))
    with answers_lost(tmp_path, malice) as (address, proxy, end_malice):
        row = Row(tmp_path / "row", address, "asked-again")
        row.feed(ALL)
        ground.driver.start(row.order())
        wait(lambda: proxy.done.get("answer_lost"), "the answer that is lost")
        end_malice()
        assert ground.driver.ended(row.name) is None
        row.has_copied(ALL)
