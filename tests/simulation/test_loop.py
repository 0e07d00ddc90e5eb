"""The simulated event loop: time, order, processes that end, and that a seed means the same everywhere."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
from random import Random
from typing import Any

import pytest

from tests.simulation.loop import START_S, Deadlock, OutOfSteps, Process, SimLoop


def loop_of(seed: int = 0, **options: Any) -> SimLoop:
    return SimLoop(Random(seed), **options)  # type: ignore[abstract]


def test_what_asyncio_offers_runs_unmodified() -> None:
    async def program() -> list[Any]:
        queue: asyncio.Queue[int] = asyncio.Queue(1)
        lock = asyncio.Lock()

        async def put(number: int) -> int:
            async with lock:
                await queue.put(number)
            return number

        async with asyncio.TaskGroup() as group:
            tasks = [group.create_task(put(number)) for number in range(3)]
            taken = sorted([await queue.get() for _ in range(3)])
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(60):
                await queue.get()
        return [
            taken,
            [task.result() for task in tasks],
            await asyncio.get_running_loop().run_in_executor(None, len, "abc"),
        ]

    assert loop_of().run_until_complete(program()) == [[0, 1, 2], [0, 1, 2], 3]


def test_time_jumps_to_the_next_timer() -> None:
    async def program() -> float:
        await asyncio.sleep(3600)
        return asyncio.get_running_loop().time() - START_S

    assert loop_of().run_until_complete(program()) == pytest.approx(3600, abs=0.001)


def _order(seed: int, *, fifo: bool) -> list[int]:
    seen: list[int] = []

    async def program() -> None:
        loop = asyncio.get_running_loop()
        for number in range(8):
            loop.call_soon(seen.append, number)
        await asyncio.sleep(1)

    loop_of(seed, fifo=fifo).run_until_complete(program())
    return seen


def test_the_seed_decides_the_order_of_what_is_ready() -> None:
    orders = {tuple(_order(seed, fifo=False)) for seed in range(10)}
    assert len(orders) == 10
    assert _order(3, fifo=False) == _order(3, fifo=False)
    assert _order(3, fifo=True) == list(range(8))


def test_a_lost_wake_up_is_a_deadlock() -> None:
    async def program() -> None:
        await asyncio.get_running_loop().create_future()

    loop = loop_of()
    with pytest.raises(Deadlock):
        loop.run_until_complete(program())
    loop.dispose([])


def test_a_spin_runs_out_of_steps() -> None:
    async def program() -> None:
        while True:
            await asyncio.sleep(0)

    loop = loop_of(max_steps=1000)
    with pytest.raises(OutOfSteps):
        loop.run_until_complete(program())
    loop.dispose([])


def test_a_dead_process_runs_nothing_not_even_finally() -> None:
    done: list[str] = []

    async def victim() -> None:
        try:
            await asyncio.sleep(1)
            done.append("woke up")
        finally:
            done.append("finally")

    async def program() -> list[str]:
        loop.spawn(process, victim())
        await asyncio.sleep(0.5)
        process.dead = True
        await asyncio.sleep(10)
        return list(done)

    process = Process("victim")
    loop = loop_of()
    assert loop.run_until_complete(program()) == []
    loop.dispose([process])


def test_asyncio_runner_can_use_it() -> None:
    async def program() -> float:
        await asyncio.sleep(5)
        return asyncio.get_running_loop().time()

    with asyncio.Runner(loop_factory=loop_of) as runner:
        assert runner.run(program()) > START_S + 5


_PRINT_HASHES = """
from tests.simulation.simulate import plan_of, simulate
for seed in (3, 11, 26):
    print(simulate(plan_of(seed)).trace_hash)
"""


def test_a_seed_is_the_same_history_whatever_the_hash_seed() -> None:
    seen = set()
    for hash_seed in ("0", "1", "777"):
        result = subprocess.run(
            [sys.executable, "-c", _PRINT_HASHES],
            env={**os.environ, "PYTHONHASHSEED": hash_seed, "PYTHONPATH": os.getcwd()},
            capture_output=True,
            text=True,
            check=True,
            timeout=60,
        )
        assert len(result.stdout.split()) == 3
        seen.add(result.stdout)
    assert len(seen) == 1
