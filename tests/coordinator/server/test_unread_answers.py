"""Answers that are not read have a bound together: the next ones wait, and who reads nothing gives way."""

from __future__ import annotations

import asyncio

from coordinator.server.budget import Relief, UnreadAnswers


async def test_an_answer_waits_until_there_is_room_for_it() -> None:
    pressed: list[str] = []
    unread: UnreadAnswers[str] = UnreadAnswers(100, lambda: pressed.append("pressed"))
    unread.holds("a", 80)
    large, small = asyncio.create_task(unread.until_room(50)), asyncio.create_task(unread.until_room(20))
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


def test_who_reads_nothing_is_found_and_who_reads_slowly_is_left_alone() -> None:
    relief: Relief[str] = Relief(2.0)
    assert relief.stalled([("still", 10), ("large", 30), ("slow", 50)], 0.0) == []
    assert relief.stalled([("still", 10), ("large", 30), ("slow", 49)], 1.0) == []
    assert relief.stalled([("still", 12), ("large", 30), ("slow", 48)], 2.0) == ["large", "still"]
    assert relief.stalled([("still", 5), ("slow", 47)], 3.0) == [], "it has read something"
    assert relief.stalled([("still", 5), ("large", 30), ("slow", 46)], 4.0) == [], "this is another answer"
    assert relief.stalled([("still", 5), ("slow", 45)], 5.0) == ["still"]
