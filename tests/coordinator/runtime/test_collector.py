"""The collector of the daemon's process: small portions, and dead cycles that are found all the same."""

from __future__ import annotations

import gc
import weakref
from collections.abc import Iterator

import pytest

from coordinator.runtime.collector import IDLE_STEP_S, STEP_S, WALKED_CPU_S, Collector


class Knot:
    """A cycle that only the collector can end."""

    def __init__(self) -> None:
        self.itself = self


class Cpu:
    """Tells how long the process has worked."""

    def __init__(self) -> None:
        self.worked_s = 0.0

    def __call__(self) -> float:
        return self.worked_s


@pytest.fixture
def cpu() -> Cpu:
    return Cpu()


@pytest.fixture
def collector(nothing_frozen: None, cpu: Cpu) -> Iterator[Collector]:
    before = gc.isenabled()
    collector = Collector(cpu, least_frozen=1_000)
    collector.start()
    yield collector
    collector.stop()
    assert gc.isenabled() == before
    assert gc.get_freeze_count() == 0


def test_nothing_is_walked_by_itself(collector: Collector) -> None:
    walks: list[int] = []

    def note(phase: str, info: dict[str, int]) -> None:
        walks.append(info["generation"])

    gc.callbacks.append(note)
    kept = [[number] for number in range(500_000)]
    gc.callbacks.remove(note)
    assert len(kept) == 500_000
    assert walks == []


def test_members_that_replace_their_requests_leave_no_more_to_walk_than_they_made_since_the_last_step(
    collector: Collector,
) -> None:
    """Each new request stands in for one that is freed: the collector's own count stays where it was."""
    requests = [[number] for number in range(50_000)]
    collector.step()
    young = []
    for place in range(len(requests)):
        requests[place] = [place]
        if place % 1_000 == 999:
            young.append(len(gc.get_objects(generation=0)))
            collector.step()
    assert max(young) < 5_000


def test_what_survives_its_walk_leaves_the_collectors_sight(collector: Collector) -> None:
    before = gc.get_freeze_count()
    kept = [[number] for number in range(20_000)]
    collector.step()
    assert gc.get_freeze_count() - before >= len(kept)


def test_a_cycle_that_dies_young_is_found_by_the_next_step(collector: Collector, cpu: Cpu) -> None:
    dead = weakref.ref(Knot())
    cpu.worked_s += WALKED_CPU_S / 2
    collector.step()
    assert dead() is None


def test_what_a_long_step_of_the_loop_made_is_not_walked(collector: Collector, cpu: Cpu) -> None:
    dead = weakref.ref(Knot())
    cpu.worked_s += 2 * WALKED_CPU_S
    collector.step()
    assert dead() is not None
    gc.unfreeze()
    gc.collect()


def test_a_daemon_that_has_nothing_to_do_is_woken_seldom_and_a_busy_one_often(collector: Collector, cpu: Cpu) -> None:
    pauses = [collector.step() for _ in range(10)]
    assert pauses == sorted(pauses)
    assert pauses[-1] == IDLE_STEP_S
    cpu.worked_s += IDLE_STEP_S / 2
    assert collector.step() == STEP_S


def test_a_cycle_that_dies_out_of_sight_is_found_once_what_is_there_has_doubled(collector: Collector) -> None:
    knot = Knot()
    dead = weakref.ref(knot)
    collector.settle()
    del knot
    assert not collector.collect_if_doubled()
    assert dead() is not None
    kept = [[number] for number in range(2 * gc.get_freeze_count())]
    gc.freeze()
    assert collector.collect_if_doubled()
    assert dead() is None
    assert not collector.collect_if_doubled(), "not before it has doubled again"
    assert kept


def test_a_step_that_takes_long_to_move_objects_out_of_sight_is_followed_by_a_long_pause(
    collector: Collector, cpu: Cpu, monkeypatch: pytest.MonkeyPatch
) -> None:
    def freeze() -> None:  # as in a Python without the GIL, where it walks two million objects
        cpu.worked_s += 0.011

    monkeypatch.setattr(gc, "freeze", freeze)
    cpu.worked_s += 1
    assert collector.step() == pytest.approx(1.1)
    monkeypatch.undo()
    cpu.worked_s += 1
    assert collector.step() == STEP_S
