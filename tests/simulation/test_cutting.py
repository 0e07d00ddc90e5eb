"""Cancelling a call at any of its awaits."""

from __future__ import annotations

import asyncio
from random import Random

from tests.simulation.cutting import cut_short
from tests.simulation.loop import SimLoop


def run(seeds: range) -> tuple[list[int], list[int]]:
    """Where calls of four steps were cut off, and what the others returned."""
    loop = SimLoop(Random(1), fifo=True)  # type: ignore[abstract]
    reached: list[int] = []
    results: list[int] = []

    async def call() -> int:
        step = 0
        try:
            for step in range(4):
                await asyncio.sleep(1.0 if step % 2 else 0)
        except asyncio.CancelledError:
            reached.append(step)
            raise
        return step

    async def all_of_them() -> None:
        for seed in seeds:
            finished, result = await cut_short(Random(seed), call())
            if finished:
                results.append(result)

    loop.run_until_complete(all_of_them())
    loop.dispose([])
    return reached, results


def test_every_await_is_cut_at_and_some_calls_come_to_their_end() -> None:
    reached, results = run(range(200))
    assert set(reached) == {0, 1, 2, 3}
    assert set(results) == {3}
    assert len(reached) + len(results) == 200


def test_what_a_call_raises_comes_through() -> None:
    loop = SimLoop(Random(1), fifo=True)  # type: ignore[abstract]
    seen: list[str] = []

    async def call() -> None:
        await asyncio.sleep(0.1)
        raise LookupError("lost")

    async def main() -> None:
        for seed in range(20):
            try:
                await cut_short(Random(seed), call())
            except LookupError as error:
                seen.append(str(error))

    loop.run_until_complete(main())
    loop.dispose([])
    assert set(seen) == {"lost"}
