"""What may happen to a query that is exactly once, on a cluster of two workers with speculation: a test for each row.

Each compares all records that a reader with read_committed sees, and the offsets of the group, with what was fed. In a
second pass SIGKILL strikes once more in the middle of each row, the daemon or the driver. It takes a while, so the whole of
it runs with ``COHORT_SPARK_SECOND_PASS=1`` in the environment only, and a sample of it always.
"""

from __future__ import annotations

import json
import os
import re
import shutil
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from random import Random

import pytest

from client import NonEmptyGroupError, TopicPartition
from protocol.messages import ApiKey
from tests.chaos.spark.pipeline import Pipeline
from tests.chaos.spark.run import Violated, rounds, undisturbed
from tests.integration.hostile_proxy import Malice
from tests.integration.spark.calls import administer
from tests.integration.spark.cluster import end, executors, hosts, parent
from tests.integration.spark.ground import BATCH, Ground, Row, answers_lost
from tests.integration.spark.points import wait

pytestmark = [pytest.mark.spark, pytest.mark.timeout(900)]

SECOND_PASS = "COHORT_SPARK_SECOND_PASS" in os.environ
SAMPLE = {"test_task_fails_after_writing", "test_checkpoint_copied"}
FEW_KILLS = ("python of a task", "daemon", "python of the driver", "executor", "driver and daemon")
MOST_BATCHES = 5
ALL = 2 * BATCH
"""Two batches, 0 and 1: the first is left alone where the trouble is one of the driver."""


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """The first pass, and of the second one all, or a sample."""
    if "strike" in metafunc.fixturenames:
        second = ["daemon killed", "driver killed"] if SECOND_PASS else []
        if metafunc.function.__name__ in SAMPLE and not second:
            second = ["daemon killed"]
        metafunc.parametrize("strike", ["", *second], ids=["", *(each.replace(" ", "-") for each in second)])


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


def test_task_fails_after_writing(ground: Ground, row: Row, strike: str) -> None:
    row.points.set("written 0", "fail")
    assert ground.run(row, row.order(), strike) is None
    row.has_copied(ALL)
    assert row.written() > ALL, "the attempt that failed has written, and its rows are aborted"


def test_speculation(ground: Ground, row: Row, strike: str) -> None:
    """An attempt that fails by itself, as on a busy machine, may leave no host for a copy: then with other records."""
    for _ in range(MOST_BATCHES):
        wait(lambda: len(hosts(ground.workers, ground.driver.app)) == 2, "an executor on each of two hosts")
        row.points.set("written 0")
        told = ground.run(row, row.order(), strike, meanwhile=lambda: row.points.release_if_alone("written 0"))
        assert told is None, "a copy on the other host overtakes the task that is held"
        if row.points.is_held("written 0"):
            break
        row.points.forget_attempts()
        row.feed(ALL)
    assert row.points.is_held("written 0"), f"attempts failed in each of {MOST_BATCHES} batches"
    row.has_copied(row.fed)
    assert row.written() > row.fed
    row.points.release("written 0")


def test_executor_killed_and_back(ground: Ground, row: Row, strike: str) -> None:
    driver = ground.driver
    row.points.set("written 0")
    driver.start(row.order())
    before = executors(ground.workers, driver.app)
    killed = parent(parent(row.points.reached("written 0", alive=driver.check)))
    assert killed in before
    end(killed)
    ground.strike(row.order(), strike)
    assert ground.driver.ended(row.name) is None
    row.has_copied(ALL)
    assert row.written() > ALL
    app = ground.driver.app
    wait(lambda: len(set(executors(ground.workers, app)) - {killed}) == 2, "the executor that comes back")
    row.points.release("written 0")


def test_zombie_task_after_the_decision(ground: Ground, row: Row, strike: str) -> None:
    """One has written to the partitions where it goes on, and its transaction is closed there; one has written to none,
    and is refused when its leader asks the coordinator."""
    for part in (0, 1):
        row.points.set(f"written {part}", "zombie")
    widened = f"concat(string(value), repeat(' ', IF(partition = 0, {5_000_000 // (BATCH // 2)}, 0))) AS value"
    order = replace(row.order(), columns=["key", widened])
    assert ground.run(row, order, strike) is None
    for part in (0, 1):
        file = row.points.directory / f"written {part}.zombie.taken"
        row.points.reached(f"written {part}", "zombie")
        told = file.with_suffix(".ended")
        file.unlink()
        wait(told.exists, f"the end of the zombie of part {part}")
        assert re.match(r"(ProducerFenced|TransactionAborted|InvalidTxnState)\w*Error: ", told.read_text())
    row.has_copied(ALL)


@pytest.mark.parametrize("first", ["the-one-that-took-over", "the-one-that-was-replaced"])
def test_two_drivers_on_one_checkpoint(ground: Ground, row: Row, first: str) -> None:
    """Whoever commits batch 1 first; the other is told that it is committed, and must not go on."""
    point = "before 1" if first == "the-one-that-took-over" else "after 1"
    row.points.set(point)
    ground.driver.start(row.order())
    row.points.reached(point, alive=ground.driver.check)
    assert ground.other.run(row.order()) is None
    row.has_copied(ALL)
    row.points.release(point)
    row.feed(BATCH)
    told = ground.driver.ended(row.name)
    row.has_copied(ALL)
    assert ground.other.run(row.order()) is None
    row.has_copied(ALL + BATCH)
    assert told is None or "Multiple streaming jobs" in told or "has taken over group" in told, told


def test_two_drivers_on_one_checkpoint_of_which_one_has_gone_on(ground: Ground, row: Row) -> None:
    """The other is a batch behind, and fails."""
    row.points.set("before 1")
    ground.driver.start(row.order())
    row.points.reached("before 1", alive=ground.driver.check)
    row.feed(BATCH)
    assert ground.other.run(row.order()) is None
    row.points.release("before 1")
    told = ground.driver.ended(row.name)
    assert told is not None
    last = row.described().committed_version
    assert f"batch 1 is committed, and so are later ones up to batch {last}" in told
    row.has_copied(ALL + BATCH)


def test_checkpoint_copied(ground: Ground, row: Row, strike: str) -> None:
    """The copy reads other rows as the next batch than the original has: they are dropped, and it fails."""
    copy = row.checkpoint.with_name("copy")
    assert ground.run(row, row.order()) is None
    shutil.copytree(row.checkpoint, copy)
    batch = row.last_batch() + 1
    row.feed(BATCH)
    assert ground.run(row, row.order()) is None
    row.feed(BATCH)
    _fails_with_both_plans(
        ground.run(row, replace(row.order(most=3 * BATCH // 2), checkpoint=str(copy)), strike), row, batch
    )
    row.has_copied(ALL + BATCH)
    assert ground.run(row, row.order()) is None
    row.has_copied(ALL + 2 * BATCH)


def test_checkpoint_rolled_back_by_one_batch(ground: Ground, row: Row, strike: str) -> None:
    assert ground.run(row, row.order()) is None
    old = row.checkpoint.with_name("old")
    shutil.copytree(row.checkpoint, old)
    last = row.last_batch()
    for log in ("offsets", "commits"):
        for name in (str(last), f".{last}.crc"):
            (row.checkpoint / log / name).unlink()
    row.feed(BATCH)
    _fails_with_both_plans(ground.run(row, row.order(most=3 * BATCH // 2), strike), row, last)
    row.has_copied(ALL)
    assert ground.run(row, replace(row.order(), checkpoint=str(old))) is None
    row.has_copied(ALL + BATCH)


def test_checkpoint_rolled_back_by_several_batches(ground: Ground, row: Row, strike: str) -> None:
    assert ground.run(row, row.order()) is None
    old, newest = (row.checkpoint.with_name(name) for name in ("old", "newest"))
    shutil.copytree(row.checkpoint, old)
    batch = row.last_batch() + 1
    row.feed(2 * BATCH)
    assert ground.run(row, row.order()) is None
    row.checkpoint.rename(newest)
    shutil.copytree(old, row.checkpoint)
    row.feed(BATCH)
    told = ground.run(row, row.order(), strike)
    assert told is not None
    last = row.described().committed_version
    assert f"batch {batch} is committed, and so are later ones up to batch {last}: the checkpoint is older" in told
    row.has_copied(ALL + 2 * BATCH)
    assert ground.run(row, replace(row.order(), checkpoint=str(newest))) is None
    row.has_copied(ALL + 3 * BATCH)


def _fails_with_both_plans(told: str | None, row: Row, batch: int) -> None:
    """The query has failed, as a batch was committed with other offsets than the checkpoint has for it."""
    assert told is not None
    found = re.search(
        rf"batch {batch} is committed as it was planned up to (\{{.*?}}}}) #\w+, and this checkpoint plans it up to "
        rf"(\{{.*?}}}}) #\w+: the checkpoint has lost what it had planned",
        told,
    )
    assert found is not None, told
    was_planned, is_planned = (json.loads(found[group])[f"{row.name}-in"] for group in (1, 2))
    known = administer(row.address, lambda admin: admin.list_offsets(row.name))
    assert was_planned == {str(at.partition): offset.offset for at, offset in known.items()} != is_planned


def test_group_offsets_moved_by_somebody(ground: Ground, row: Row, strike: str) -> None:
    assert ground.run(row, row.order()) is None
    group, first = row.name, TopicPartition(f"{row.name}-in", 0)
    right = administer(row.address, lambda admin: admin.list_offsets(group))[first].offset
    _move(row, first, 3)
    row.feed(BATCH)
    told = ground.run(row, row.order(), strike)
    assert told is not None
    assert f"begins at offset {right} of partition 0 of topic {row.name}-in, but 3 is committed" in told
    assert row.stored() == list(range(ALL))
    _move(row, first, right)
    assert ground.run(row, row.order()) is None
    row.has_copied(ALL + BATCH)


def _move(row: Row, partition: TopicPartition, offset: int) -> None:
    """Refused as long as the query owns the group."""

    def moved() -> bool:
        try:
            administer(row.address, lambda admin: admin.alter_offsets(row.name, {partition: offset}))
        except NonEmptyGroupError:
            return False
        return True

    wait(moved, "the end of the query's membership")


def test_daemon_restarts(ground: Ground, row: Row, strike: str) -> None:
    """It is killed when a task has written and when the driver is about to commit: the batch goes on."""
    row.points.set("written 0")
    row.points.set("before 0")
    row.points.set("after 1")
    ground.driver.start(row.order())
    for point in ("written 0", "before 0", "after 1"):
        row.points.reached(point, alive=ground.driver.check)
        ground.restart_daemon()
        row.points.release(point)
    ground.strike(row.order(), strike)
    assert ground.driver.ended(row.name) is None
    row.has_copied(ALL)


def test_transaction_timeout(ground: Ground, row: Row, strike: str) -> None:
    row.points.set("before 1")
    ground.driver.start(row.order(transaction_timeout_ms="10000"))
    row.points.reached("before 1", alive=ground.driver.check)
    wait(lambda: not row.transaction(), "the end of the transaction")
    row.points.release("before 1")
    told = ground.driver.ended(row.name)
    assert told is not None
    assert re.search(
        r"batch 1 of .* was aborted and nothing of it takes effect: .*A restart of the query writes", told
    ), told
    assert "transaction.timeout.ms must be longer than a batch may pause" in told
    row.has_copied_one_batch()
    assert ground.run(row, row.order(), strike) is None
    row.has_copied(ALL)
    assert row.written() > ALL


HELD = {
    "joined": "before 1",
    "late": "before 1",
    "decided": "after 1",
    "complete": "plan 3",
    "planned": "planned 3",
    "lost": "before 1",
}
"""The queries of the driver that is killed, and what each is about to do then."""


@pytest.fixture(scope="module")
def killed(ground: Ground, tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, Row]]:
    """They are all held when the driver is killed, and ``lost`` waits for an answer that does not come."""
    with answers_lost(tmp_path_factory.mktemp("lost"), Malice()) as (address, proxy, end_malice):
        rows = {name: ground.row(name) for name in HELD if name != "lost"}
        rows["lost"] = Row(ground.directory / "lost", address, "lost")
        driver = ground.driver
        for name, row in rows.items():
            row.feed(ALL)
            row.points.set(HELD[name])
            driver.start(row.order(transaction_timeout_ms="15000" if name == "late" else "600000"))
        for name, row in rows.items():
            row.points.reached(HELD[name], alive=driver.check)
        proxy.malice = Malice(answer_lost=1.0, kinds=frozenset({ApiKey.END_TXN}))
        rows["lost"].points.release("before 1")
        wait(lambda: proxy.done.get("answer_lost"), "the answer that is lost")
        ground.kill_driver()
        end_malice()
        yield rows


def test_driver_dies_before_the_decision_and_attempts_join_the_open_transaction(
    ground: Ground, killed: dict[str, Row]
) -> None:
    row = killed["joined"]
    before = row.described()
    assert (before.state, before.version, before.committed_version) == ("Ongoing", 1, 0)
    row.has_copied_one_batch()
    assert ground.run(row, row.order()) is None
    after = row.described()
    row.has_copied(ALL)
    assert row.written() > ALL
    assert (after.producer_id, after.producer_epoch) == (before.producer_id, before.producer_epoch + 1)
    assert after.previous_outcome == "committed"


def test_driver_dies_before_the_decision_and_the_timeout_ends_its_transaction(
    ground: Ground, killed: dict[str, Row]
) -> None:
    row = killed["late"]
    wait(lambda: not row.transaction(), "the end of the transaction")
    row.has_copied_one_batch()
    assert ground.run(row, row.order()) is None
    row.has_copied(ALL)
    assert row.written() > ALL


def test_driver_dies_after_the_decision(ground: Ground, killed: dict[str, Row]) -> None:
    row = killed["decided"]
    row.has_copied(ALL)
    assert ground.run(row, row.order()) is None
    row.has_copied(ALL)
    row.feed(BATCH)
    assert ground.run(row, row.order()) is None
    row.has_copied(ALL + BATCH)


@pytest.mark.parametrize("moment", ["complete", "planned"])
def test_driver_dies_after_the_decision_and_spark_knows(ground: Ground, killed: dict[str, Row], moment: str) -> None:
    """The batch is complete for Spark; the source is about to plan the next one, or has."""
    row = killed[moment]
    stored = row.stored()
    assert len(stored) == len(set(stored)) == row.committed() > BATCH
    row.feed(BATCH)
    assert ground.run(row, row.order()) is None
    row.has_copied(ALL + BATCH)


def test_the_answer_is_lost_and_the_driver_dies(ground: Ground, killed: dict[str, Row]) -> None:
    row = killed["lost"]
    row.has_copied(ALL)
    assert ground.run(row, row.order()) is None
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


def test_random_kills(ground: Ground) -> None:
    """A few of ``python -m tests.chaos.spark``, which kills for as long as one likes."""
    said: list[str] = []
    pipeline = Pipeline(ground)
    kills = rounds(pipeline, FEW_KILLS, Random(7), said.append)
    pipeline.stop()
    assert [kill.victim for kill in kills] == list(FEW_KILLS), said


def test_the_checks_of_random_kills_find_what_is_doubled(ground: Ground) -> None:
    """Without transactions: tasks that fail when they have written are enough."""
    pipeline = Pipeline(ground, delivery="at-least-once", chance=0.4, name="doubled")

    def several_rounds() -> None:
        for _ in range(5):
            undisturbed(pipeline)

    with pytest.raises(Violated, match=r"0 lost: \[\]; \d+ more than once"):
        several_rounds()
    pipeline.stop()
