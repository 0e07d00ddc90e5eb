"""Pauses of the cyclic collector overlap without ending one another."""

from __future__ import annotations

import gc
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from threading import Barrier
from types import ModuleType

import pytest

from client.garbage import spare_what_is_loaded, without_garbage_collection


@pytest.fixture(autouse=True)
def _as_it_was() -> Iterator[None]:
    enabled = gc.isenabled()
    yield
    (gc.enable if enabled else gc.disable)()


def test_the_collector_goes_on_afterwards() -> None:
    gc.enable()
    with without_garbage_collection():
        assert not gc.isenabled()
    assert gc.isenabled()


def test_also_after_an_error() -> None:
    gc.enable()
    with pytest.raises(ValueError, match="no plan"), without_garbage_collection():
        raise ValueError("no plan")
    assert gc.isenabled()


def test_a_collector_that_the_program_switched_off_stays_off() -> None:
    gc.disable()
    with without_garbage_collection(), without_garbage_collection():
        pass
    assert not gc.isenabled()


def test_the_end_of_an_inner_pause_does_not_end_the_outer_one() -> None:
    gc.enable()
    with without_garbage_collection():
        with without_garbage_collection():
            pass
        assert not gc.isenabled()
    assert gc.isenabled()


def test_a_thread_that_is_done_does_not_end_the_pause_of_another() -> None:
    gc.enable()
    both_inside, one_is_out = Barrier(2), Barrier(2)

    def short() -> None:
        with without_garbage_collection():
            both_inside.wait(10)
        one_is_out.wait(10)

    def long() -> bool:
        with without_garbage_collection():
            both_inside.wait(10)
            one_is_out.wait(10)
            return gc.isenabled()

    with ThreadPoolExecutor(2) as threads:
        ended, resumed = threads.submit(short), threads.submit(long)
        ended.result(10)
        assert not resumed.result(10)
    assert gc.isenabled()


@pytest.mark.usefixtures("nothing_frozen")
def test_what_is_loaded_is_spared_and_what_the_work_makes_is_not() -> None:
    try:
        spare_what_is_loaded()
        spared = gc.get_freeze_count()
        assert spared > 1000
        later: list[object] = []
        later.append(later)
        spare_what_is_loaded()
        assert gc.get_freeze_count() <= spared
        del later
        assert gc.collect() >= 1
    finally:
        gc.unfreeze()


@pytest.mark.usefixtures("nothing_frozen")
def test_modules_that_are_loaded_later_are_spared_by_the_next_call(monkeypatch: pytest.MonkeyPatch) -> None:
    try:
        spare_what_is_loaded()
        spared = gc.get_freeze_count()
        module = ModuleType("loaded_by_the_first_task")
        module.__dict__["held"] = [[number] for number in range(5_000)]
        monkeypatch.setitem(sys.modules, module.__name__, module)
        spare_what_is_loaded()
        assert gc.get_freeze_count() >= spared + 5_000
    finally:
        gc.unfreeze()
