"""The bound on what a producer holds: no call gets more than there is, none is forgotten, nothing leaks."""

from __future__ import annotations

import asyncio

import pytest
from hypothesis import given
from hypothesis import strategies as st

from client.errors import ClosedError
from client.producer.buffer_pool import BufferPool


async def settle() -> None:
    """Lets every task that can run do so."""
    for _ in range(5):
        await asyncio.sleep(0)


async def test_room_is_given_at_once_while_there_is_some() -> None:
    pool = BufferPool(100)
    assert pool.try_reserve(60)
    assert not pool.try_reserve(50)
    assert pool.try_reserve(40)
    assert pool.used == 100


async def test_calls_are_admitted_first_come_first_served() -> None:
    pool = BufferPool(100)
    await pool.reserve(100)
    order: list[str] = []

    async def wait(name: str, size: int) -> None:
        await pool.reserve(size)
        order.append(name)

    waiting = [asyncio.create_task(wait("large", 90)), asyncio.create_task(wait("small", 10))]
    await settle()
    assert pool.waiting == 2
    pool.release(50)
    await settle()
    assert order == []  # the small one could go in, but it is not its turn
    assert not pool.try_reserve(1)
    pool.release(50)
    await asyncio.gather(*waiting)
    assert order == ["large", "small"]


async def test_a_call_that_was_admitted_but_has_not_run_yet_is_not_overtaken() -> None:
    pool = BufferPool(100)
    await pool.reserve(100)
    order: list[str] = []

    async def wait(name: str) -> None:
        await pool.reserve(10)
        order.append(name)

    first = asyncio.create_task(wait("first"))
    await settle()
    pool.release(100)
    assert not pool.try_reserve(10)
    await wait("second")  # in the same turn of the loop in which the first was let in
    await first
    assert order == ["first", "second"]
    assert pool.try_reserve(80)


async def test_a_cancelled_wait_takes_nothing_and_lets_the_next_one_in() -> None:
    pool = BufferPool(100)
    await pool.reserve(60)
    large = asyncio.create_task(pool.reserve(90))
    await settle()
    small = asyncio.create_task(pool.reserve(40))
    await settle()
    large.cancel()
    await asyncio.wait_for(small, 20)
    assert pool.used == 100


async def test_room_granted_in_the_same_turn_as_the_cancellation_goes_back() -> None:
    pool = BufferPool(100)
    await pool.reserve(100)
    waiting = asyncio.create_task(pool.reserve(50))
    await settle()
    pool.release(100)
    waiting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await waiting
    assert pool.used == 0


async def test_closing_fails_those_who_wait_and_those_who_come() -> None:
    pool = BufferPool(10)
    await pool.reserve(10)
    waiting = asyncio.create_task(pool.reserve(1))
    await settle()
    pool.close("stopped")
    with pytest.raises(ClosedError, match="stopped"):
        await waiting
    pool.release(10)
    assert not pool.try_reserve(1)
    with pytest.raises(ClosedError):
        await pool.reserve(1)


async def test_what_never_fits_is_refused() -> None:
    with pytest.raises(ValueError, match="11 bytes never fit"):
        await BufferPool(10).reserve(11)


@given(st.lists(st.tuples(st.sampled_from(["reserve", "release", "cancel"]), st.integers(1, 100)), max_size=60))
def test_whatever_happens_the_budget_holds_and_everything_comes_back(steps: list[tuple[str, int]]) -> None:
    async def run() -> None:
        pool, waiting, held = BufferPool(100), list[tuple[int, asyncio.Task[None]]](), list[int]()
        for step, number in steps:
            if step == "reserve":
                waiting.append((number, asyncio.create_task(pool.reserve(number))))
            elif step == "release" and held:
                pool.release(held.pop(number % len(held)))
            elif step == "cancel" and waiting:
                waiting[number % len(waiting)][1].cancel()
            if number % 2:
                await settle()
            held += [size for size, task in waiting if task.done() and not task.cancelled()]
            waiting = [(size, task) for size, task in waiting if not task.done()]
            assert sum(held) <= pool.used <= 100
        while waiting or held:
            await settle()
            held += [size for size, task in waiting if task.done() and not task.cancelled()]
            waiting = [(size, task) for size, task in waiting if not task.done()]
            for size in held:
                pool.release(size)
            held = []
        assert pool.used == 0

    asyncio.run(run())
