"""Blocking calls of the disk run in bounded lanes of threads, and what becomes of each reaches the loop that asked."""

from __future__ import annotations

import asyncio
import gc
import threading
import weakref
from collections.abc import Iterator
from pathlib import Path
from random import Random

import pytest

from coordinator.filesystem.executor import Disk
from coordinator.filesystem.files import FileStorage
from tests.simulation.loop import SimLoop


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[Disk]:
    disk = Disk(FileStorage(tmp_path), threads=2)
    yield disk
    disk.close()


async def ended(threads: set[threading.Thread]) -> None:
    async with asyncio.timeout(30):
        while any(thread.is_alive() for thread in threads):
            await asyncio.sleep(0.001)


async def test_a_call_gives_what_it_returns_and_raises_what_it_raises(disk: Disk) -> None:
    assert await disk.run(divmod, 7, 2) == (3, 1)
    assert await disk.read(int, "12", base=5) == 7
    with pytest.raises(ZeroDivisionError):
        await disk.tend(divmod, 7, 0)
    assert disk.pending() == {"write": 0, "read": 0, "maintenance": 0}


async def test_no_more_calls_of_a_lane_run_at_once_than_it_has_threads(disk: Disk) -> None:
    go, lock, begun, most = threading.Event(), threading.Lock(), list[int](), 0
    running = 0

    def call(number: int) -> None:
        nonlocal running, most
        with lock:
            begun.append(number)
            running += 1
            most = max(most, running)
        assert go.wait(30)
        with lock:
            running -= 1

    calls = [asyncio.create_task(disk.run(call, number)) for number in range(8)]
    async with asyncio.timeout(30):
        while len(begun) < 2:
            await asyncio.sleep(0.001)
        assert disk.pending()["write"] == 8
        assert await disk.read(int, "1") == 1  # another lane is free
        go.set()
        await asyncio.gather(*calls)
    assert most == 2
    assert sorted(begun[:2]) == [0, 1]
    assert sorted(begun) == list(range(8))


async def test_a_cancelled_caller_learns_so_when_its_call_is_over(disk: Disk) -> None:
    began, go, over = threading.Event(), threading.Event(), threading.Event()

    def call() -> None:
        began.set()
        assert go.wait(30)
        over.set()

    task = asyncio.create_task(disk.run(call))
    await disk.read(began.wait, 30)
    task.cancel()
    await asyncio.sleep(0.02)
    assert not task.done()
    go.set()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert over.is_set()


async def test_calls_that_were_handed_over_run_to_their_end_after_close_and_no_other_begins(disk: Disk) -> None:
    go = threading.Event()
    before = set(threading.enumerate())
    calls = [asyncio.create_task(disk.run(go.wait, 30)) for _ in range(4)]
    await asyncio.sleep(0)
    lanes = set(threading.enumerate()) - before
    assert len(lanes) == 2
    disk.close()
    with pytest.raises(RuntimeError, match="closed"):
        await disk.run(int)
    go.set()
    assert await asyncio.gather(*calls) == [True] * 4
    await ended(lanes)


async def test_a_thread_that_waits_for_its_next_call_keeps_nothing_of_the_last(disk: Disk) -> None:
    class Records(bytearray):
        """What a batch may hold."""

    def length(of: Records) -> int:
        return len(of)

    records = Records(1000)
    kept = weakref.ref(records)
    assert await disk.run(length, records) == 1000
    del records
    async with asyncio.timeout(30):
        while kept() is not None:
            await asyncio.sleep(0.001)  # the thread lets go a moment after the loop was told
            gc.collect()


async def test_the_threads_of_a_disk_that_is_dropped_end(tmp_path: Path) -> None:
    before = set(threading.enumerate())
    disk = Disk(FileStorage(tmp_path))
    await asyncio.gather(disk.run(int), disk.read(int), disk.tend(int))
    lanes = set(threading.enumerate()) - before
    assert len(lanes) == 3
    del disk
    gc.collect()
    await ended(lanes)


async def test_a_lane_goes_on_with_the_threads_that_it_has_where_the_system_gives_no_more(
    disk: Disk, monkeypatch: pytest.MonkeyPatch
) -> None:
    start = threading.Thread.start

    def refuse(thread: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(threading.Thread, "start", refuse)
    with pytest.raises(RuntimeError, match="can't start"):
        await disk.run(int)
    monkeypatch.setattr(threading.Thread, "start", start)
    assert await disk.run(int, "1") == 1, "it is tried again"
    monkeypatch.setattr(threading.Thread, "start", refuse)
    assert await asyncio.gather(*(disk.run(int, str(number)) for number in range(20))) == list(range(20))


def test_on_a_simulated_loop_no_thread_begins(tmp_path: Path) -> None:
    """Its time and its faults are those of the loop, which makes each call itself."""
    loop = SimLoop(Random(1))  # type: ignore[abstract]
    before = set(threading.enumerate())
    disk = Disk(FileStorage(tmp_path))
    try:
        assert loop.run_until_complete(disk.run(divmod, 7, 2)) == (3, 1)
        assert set(threading.enumerate()) == before
    finally:
        disk.close()
        loop.close()
