"""The collector of the daemon's process: small portions, and dead cycles that are found all the same."""

from __future__ import annotations

import gc
import weakref
from collections.abc import Iterator

import pytest

from coordinator.runtime.collector import THRESHOLDS, Collector


class Knot:
    """A cycle that only the collector can end."""

    def __init__(self) -> None:
        self.itself = self


@pytest.fixture
def collector() -> Iterator[Collector]:
    before = gc.get_threshold()
    collector = Collector(least_frozen=1_000)
    collector.start()
    yield collector
    collector.stop()
    assert gc.get_threshold() == before
    assert gc.get_freeze_count() == 0


def portions(objects: int) -> list[int]:
    """Makes objects that stay; gives the generation of each walk that came of it."""
    walks: list[int] = []

    def note(phase: str, info: dict[str, int]) -> None:
        if phase == "stop":
            walks.append(info["generation"])

    gc.callbacks.append(note)
    kept = [[number] for number in range(objects)]
    gc.callbacks.remove(note)
    assert len(kept) == objects
    return walks


def test_all_objects_are_never_walked_by_themselves(collector: Collector) -> None:
    walks = portions(20 * THRESHOLDS[0])
    assert walks.count(0) >= 10
    assert walks.count(1) >= 2
    assert 2 not in walks


def test_what_survives_leaves_the_collectors_sight(collector: Collector) -> None:
    before = gc.get_freeze_count()
    kept = [[number] for number in range(20 * THRESHOLDS[0])]
    assert gc.get_freeze_count() - before > len(kept) // 2


def test_a_cycle_that_dies_young_is_found_by_a_small_portion(collector: Collector) -> None:
    dead = weakref.ref(Knot())
    portions(2 * THRESHOLDS[0])
    assert dead() is None


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
