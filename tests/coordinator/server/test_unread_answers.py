"""Answers that are not read have a bound together: the next ones wait, and clients that read too slowly give way."""

from __future__ import annotations

import asyncio

from coordinator.server.unread_answers import Reading, SlowReaders, UnreadAnswers


async def test_an_answer_waits_until_there_is_room_for_it() -> None:
    pressed: list[str] = []
    unread: UnreadAnswers[str] = UnreadAnswers(100, lambda: pressed.append("pressed"))
    unread.holds("a", 80)
    small, large = asyncio.create_task(unread.until_room(20)), asyncio.create_task(unread.until_room(50))
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    assert (large.done(), small.done(), unread.pressed) == (False, True, True)
    assert pressed
    unread.holds("a", 40)
    await large
    assert not unread.pressed


async def test_one_answer_goes_however_large_it_is() -> None:
    unread: UnreadAnswers[str] = UnreadAnswers(100)
    await unread.until_room(1000)
    unread.holds("a", 1000)
    assert unread.pressed
    waiting = asyncio.create_task(unread.until_room(1))
    await asyncio.sleep(0)
    assert not waiting.done()
    unread.holds("a", 0)
    await waiting


async def test_one_that_is_cancelled_while_it_waits_is_forgotten() -> None:
    unread: UnreadAnswers[str] = UnreadAnswers(100)
    unread.holds("a", 100)
    waiting = asyncio.create_task(unread.until_room(1))
    await asyncio.sleep(0)
    assert unread.pressed
    waiting.cancel()
    await asyncio.gather(waiting, return_exceptions=True)
    assert not unread.pressed


async def test_answers_get_room_in_the_order_in_which_they_began_to_wait() -> None:
    unread: UnreadAnswers[str] = UnreadAnswers(100)
    unread.holds("a", 90)
    order: list[str] = []

    async def wait(name: str, size: int) -> None:
        await unread.until_room(size)
        order.append(name)
        unread.holds(name, size)

    waiting = [asyncio.create_task(wait(name, size)) for name, size in (("large", 80), ("small", 10), ("tiny", 1))]
    await asyncio.sleep(0)
    late = asyncio.create_task(wait("late", 5))
    await asyncio.sleep(0)
    assert order == [], "there is room for the small ones, but the large one has waited longer"
    unread.holds("a", 9)
    await asyncio.gather(*waiting)
    assert order == ["large", "small", "tiny"]
    unread.holds("large", 0)
    await late


async def test_one_that_is_cancelled_lets_the_next_one_go() -> None:
    unread: UnreadAnswers[str] = UnreadAnswers(100)
    unread.holds("a", 90)
    large, small = asyncio.create_task(unread.until_room(80)), asyncio.create_task(unread.until_room(5))
    await asyncio.sleep(0)
    large.cancel()
    await small


def found(slow: SlowReaders[str], now_s: float, **clients: tuple[int, int, int]) -> list[str]:
    return slow.found([(name, Reading(*reading)) for name, reading in clients.items()], now_s)


def test_clients_that_take_almost_nothing_in_the_time_of_grace_are_too_slow() -> None:
    slow: SlowReaders[str] = SlowReaders(2.0, 100, 30.0)
    assert found(slow, 0.0, still=(0, 10, 1), drips=(0, 300, 1), reads=(0, 500, 1)) == []
    assert found(slow, 1.0, still=(0, 10, 1), drips=(40, 260, 1), reads=(50, 450, 1)) == []
    assert found(slow, 2.0, still=(0, 12, 1), drips=(99, 201, 1), reads=(100, 400, 1)) == ["drips", "still"]
    assert found(slow, 3.9, reads=(199, 301, 1), still=(0, 12, 1)) == ["still"]
    assert found(slow, 4.0, reads=(199, 301, 1)) == ["reads"]


def test_the_time_of_grace_begins_anew_with_each_answer_and_while_nothing_is_unsent() -> None:
    slow: SlowReaders[str] = SlowReaders(2.0, 100, 30.0)
    assert found(slow, 0.0, next=(0, 10, 1), prepares=(7, 0, 1)) == []
    assert found(slow, 1.9, next=(10, 50, 2), prepares=(7, 0, 1)) == []
    assert found(slow, 3.8, next=(10, 50, 2), prepares=(7, 0, 1)) == []
    assert found(slow, 3.9, next=(10, 50, 2), prepares=(7, 90, 1)) == ["next"]


def test_an_answer_has_a_time_in_all_however_steadily_it_is_read() -> None:
    slow: SlowReaders[str] = SlowReaders(2.0, 100, 10.0)
    for second in range(10):
        assert found(slow, second, steady=(second * 100, 5000, 1), quick=(second * 900, 5000, second)) == []
    assert found(slow, 10, steady=(1000, 5000, 1), quick=(9000, 5000, 10)) == ["steady"]
