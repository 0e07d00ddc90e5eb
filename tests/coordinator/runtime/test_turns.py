"""Work under many keys: in order under each, in turn among them, a bounded number of pieces in one turn of the loop."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from coordinator.runtime.effects import Effects
from coordinator.runtime.replies import Replies
from coordinator.runtime.turns import HEAVY, PATIENCE, PER_TURN, Turns
from protocol.messages import Request, Response
from protocol.messages.groups import CARRY_ON, HeartbeatRequest, HeartbeatResponse


def do(turns: Turns, key: str, piece: Callable[[], object]) -> None:
    """At once when it may be, or else in its turn."""

    def work() -> None:
        piece()

    if turns.free(key):
        work()
    else:
        turns.wait(key, work)


@given(st.lists(st.sampled_from("abc")), st.integers(1, 5))
def test_all_is_done_in_order_under_each_key(keys: list[str], per_turn: int) -> None:
    async def run() -> list[tuple[str, int]]:
        turns, done = Turns(per_turn), list[tuple[str, int]]()
        for number, key in enumerate(keys):
            do(turns, key, lambda key=key, number=number: done.append((key, number)))  # type: ignore[misc]
            if number % 3 == 2:
                await asyncio.sleep(0)
        while len(turns):
            await asyncio.sleep(0)
        return done

    done = asyncio.run(run())
    assert sorted(number for _, number in done) == list(range(len(keys)))
    for key in "abc":
        numbers = [number for name, number in done if name == key]
        assert numbers == sorted(numbers)


async def test_one_turn_does_so_many_pieces_and_the_next_goes_on() -> None:
    turns, done = Turns(10), list[int]()
    for number in range(25):
        do(turns, "crowd", lambda number=number: done.append(number))  # type: ignore[misc]
    counts = [len(done)]
    while len(turns):
        await asyncio.sleep(0)
        counts.append(len(done))
    assert counts == [10, 20, 25]


async def test_who_comes_alone_does_not_wait_for_a_crowd() -> None:
    turns, done = Turns(10), list[str]()
    for _ in range(1000):
        do(turns, "crowd", lambda: done.append("crowd"))
    await asyncio.sleep(0)
    do(turns, "alone", lambda: done.append("alone"))
    await asyncio.sleep(0)
    assert done.index("alone") < 30
    turns.finish()
    assert len(done) == 1001


async def test_what_work_brings_about_under_its_key_comes_behind_the_rest_of_it() -> None:
    turns, done = Turns(1), list[str]()
    assert turns.free("other")

    def stream() -> bool:
        done.append(f"piece {len(done)}")
        if len(done) == 1:
            do(turns, "g", lambda: done.append("brought about"))
        return len(done) < 3

    turns.wait("g", stream)
    turns.finish()
    assert done == ["piece 0", "piece 1", "piece 2", "brought about"]


async def test_work_that_fails_is_done_with_and_the_rest_goes_on() -> None:
    turns, done = Turns(1), list[str]()
    assert turns.free("other")

    def fails() -> None:
        raise ValueError("no")

    turns.wait("g", fails)
    turns.wait("g", lambda: done.append("after it"))
    with pytest.raises(ValueError, match="no"):
        turns.finish()
    turns.finish()
    assert done == ["after it"]


async def test_light_work_goes_before_heavy_work_of_which_one_piece_is_done_in_a_turn() -> None:
    turns, done = Turns(10), list[str]()
    for key in "abcd":
        turns.wait(key, lambda key=key: done.append(key), HEAVY + 1)  # type: ignore[misc]
    await asyncio.sleep(0)
    assert done == ["a"]
    turns.wait("light", lambda: done.append("light"))
    await asyncio.sleep(0)
    assert done == ["a", "light", "b"]
    turns.finish()
    assert done == ["a", "light", "b", "c", "d"]


async def test_heavy_work_has_its_turn_beside_light_work_without_end() -> None:
    turns, done = Turns(10), list[int]()
    for number in range(2):
        turns.wait(number, lambda number=number: done.append(number), 1000)  # type: ignore[misc]
    turn_of: dict[int, int] = {}
    for turn in range(3 * PATIENCE):
        for light in range(10 - turn % 3):
            turns.wait(f"light {light}", lambda: None)
            turns.wait(f"more light {light}", lambda: None)
        await asyncio.sleep(0)
        turn_of |= {number: turn for number in done if number not in turn_of}
    assert set(turn_of) == {0, 1}
    assert max(turn_of.values()) <= 2 * PATIENCE


async def test_work_counts_by_its_weight() -> None:
    turns = Turns(10)
    assert turns.free("a", 4)
    assert turns.free("b", 4)
    assert turns.free("c", 400)
    assert not turns.free("d")
    await asyncio.sleep(0)
    assert turns.free("d")


class Question:
    """A request that waits for its answer."""

    def __init__(self, group_id: str, answers: list[tuple[str, Response]]) -> None:
        self.request: Request = HeartbeatRequest(group_id, 1, "m")
        self._group_id, self._answers = group_id, answers

    def answer(self, response: Response) -> None:
        self._answers.append((self._group_id, response))


async def test_ten_thousand_answers_leave_in_order_and_made_as_they_leave_with_others_in_between() -> None:
    replies, answers, made = Replies(), list[tuple[str, Response]](), list[int]()

    def make(number: int) -> HeartbeatResponse:
        made.append(number)
        return HeartbeatResponse(0, str(number))

    effects = Effects()
    for number in range(10_000):
        effects.reply_with(replies.open(Question("large", answers)), make, number)
    replies.send_all(effects.replies)
    replies.send(replies.open(Question("large", answers)), HeartbeatResponse(0, "last"))
    replies.send(replies.open(Question("other", answers)), CARRY_ON)
    for _ in range(3):
        await asyncio.sleep(0)
    assert ("other", CARRY_ON) in answers
    assert len(made) <= 3 * PER_TURN
    replies.finish()
    said = [str(getattr(response, "message", "")) for group, response in answers if group == "large"]
    assert said == [*map(str, range(10_000)), "last"]
    assert len(replies) == 0
