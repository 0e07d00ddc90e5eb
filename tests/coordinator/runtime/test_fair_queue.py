"""Work under many keys: in order under each, in turn among them, a bounded number of pieces in one turn of the loop."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from coordinator.groups.core import GroupCore
from coordinator.runtime.effects import Effects
from coordinator.runtime.fair_queue import HEAVY, PATIENCE, PER_TURN, FairQueue
from coordinator.runtime.pending_replies import PendingReplies
from protocol.messages import Request, Response
from protocol.messages.groups import CARRY_ON, HeartbeatRequest, HeartbeatResponse


def do(queue: FairQueue, key: str, piece: Callable[[], object]) -> None:
    """At once when it may be, or else in its turn."""

    def work() -> None:
        piece()

    if queue.try_acquire(key):
        work()
    else:
        queue.put(key, work)


@given(st.lists(st.sampled_from("abc")), st.integers(1, 5))
def test_all_is_done_in_order_under_each_key(keys: list[str], per_turn: int) -> None:
    async def run() -> list[tuple[str, int]]:
        queue, done = FairQueue(per_turn), list[tuple[str, int]]()
        for number, key in enumerate(keys):
            do(queue, key, lambda key=key, number=number: done.append((key, number)))  # type: ignore[misc]
            if number % 3 == 2:
                await asyncio.sleep(0)
        while len(queue):
            await asyncio.sleep(0)
        return done

    done = asyncio.run(run())
    assert sorted(number for _, number in done) == list(range(len(keys)))
    for key in "abc":
        numbers = [number for name, number in done if name == key]
        assert numbers == sorted(numbers)


async def test_one_turn_does_so_many_pieces_and_the_next_goes_on() -> None:
    queue, done = FairQueue(10), list[int]()
    for number in range(25):
        do(queue, "crowd", lambda number=number: done.append(number))  # type: ignore[misc]
    counts = [len(done)]
    while len(queue):
        await asyncio.sleep(0)
        counts.append(len(done))
    assert counts == [10, 20, 25]


async def test_who_comes_alone_does_not_wait_for_a_crowd() -> None:
    queue, done = FairQueue(10), list[str]()
    for _ in range(1000):
        do(queue, "crowd", lambda: done.append("crowd"))
    await asyncio.sleep(0)
    do(queue, "alone", lambda: done.append("alone"))
    await asyncio.sleep(0)
    assert done.index("alone") < 30
    queue.drain()
    assert len(done) == 1001


async def test_what_work_brings_about_under_its_key_comes_behind_the_rest_of_it() -> None:
    queue, done = FairQueue(1), list[str]()
    assert queue.try_acquire("other")

    def stream() -> bool:
        done.append(f"piece {len(done)}")
        if len(done) == 1:
            do(queue, "g", lambda: done.append("brought about"))
        return len(done) < 3

    queue.put("g", stream)
    queue.drain()
    assert done == ["piece 0", "piece 1", "piece 2", "brought about"]


async def test_work_that_fails_is_done_with_and_the_rest_goes_on() -> None:
    queue, done = FairQueue(1), list[str]()
    assert queue.try_acquire("other")

    def fails() -> None:
        raise ValueError("no")

    queue.put("g", fails)
    queue.put("g", lambda: done.append("after it"))
    with pytest.raises(ValueError, match="no"):
        queue.drain()
    queue.drain()
    assert done == ["after it"]


async def test_light_work_goes_before_heavy_work_of_which_one_piece_is_done_in_a_turn() -> None:
    queue, done = FairQueue(10), list[str]()
    for key in "abcd":
        queue.put(key, lambda key=key: done.append(key), HEAVY + 1)  # type: ignore[misc]
    await asyncio.sleep(0)
    assert done == ["a"]
    queue.put("light", lambda: done.append("light"))
    await asyncio.sleep(0)
    assert done == ["a", "light", "b"]
    queue.drain()
    assert done == ["a", "light", "b", "c", "d"]


async def test_heavy_work_has_its_turn_beside_light_work_without_end() -> None:
    queue, done = FairQueue(10), list[int]()
    for number in range(2):
        queue.put(number, lambda number=number: done.append(number), 1000)  # type: ignore[misc]
    turn_of: dict[int, int] = {}
    for turn in range(3 * PATIENCE):
        for light in range(10 - turn % 3):
            queue.put(f"light {light}", lambda: None)
            queue.put(f"more light {light}", lambda: None)
        await asyncio.sleep(0)
        turn_of |= {number: turn for number in done if number not in turn_of}
    assert set(turn_of) == {0, 1}
    assert max(turn_of.values()) <= 2 * PATIENCE


async def test_work_counts_by_its_weight() -> None:
    queue = FairQueue(10)
    assert queue.try_acquire("a", 4)
    assert queue.try_acquire("b", 4)
    assert queue.try_acquire("c", 400)
    assert not queue.try_acquire("d")
    await asyncio.sleep(0)
    assert queue.try_acquire("d")


class Question:
    """A request that waits for its answer."""

    def __init__(self, group_id: str, answers: list[tuple[str, Response]]) -> None:
        self.request: Request = HeartbeatRequest(group_id, 1, "m")
        self._group_id, self._answers = group_id, answers

    def answer(self, response: Response) -> None:
        self._answers.append((self._group_id, response))


async def test_ten_thousand_answers_leave_in_order_and_made_as_they_leave_with_others_in_between() -> None:
    replies, answers, made = (
        PendingReplies(GroupCore.request_is_about),
        list[tuple[str, Response]](),
        list[int](),
    )

    def make(number: int) -> HeartbeatResponse:
        made.append(number)
        return HeartbeatResponse(0, str(number))

    effects = Effects()
    for number in range(10_000):
        effects.reply_with(replies.open(Question("large", answers)), make, number)
    replies.send_all(effects.given)
    replies.send(replies.open(Question("large", answers)), HeartbeatResponse(0, "last"))
    replies.send(replies.open(Question("other", answers)), CARRY_ON)
    for _ in range(3):
        await asyncio.sleep(0)
    assert ("other", CARRY_ON) in answers
    assert len(made) <= 3 * PER_TURN
    replies.drain()
    said = [str(getattr(response, "message", "")) for group, response in answers if group == "large"]
    assert said == [*map(str, range(10_000)), "last"]
    assert len(replies) == 0


async def test_a_request_without_a_token_is_answered_at_once_or_in_its_turn() -> None:
    replies, answers = PendingReplies(GroupCore.request_is_about), list[tuple[str, Response]]()
    for number in range(PER_TURN + 5):
        replies.answer(Question(f"g{number}", answers), CARRY_ON)
    assert answers == [(f"g{number}", CARRY_ON) for number in range(PER_TURN)]
    assert len(replies) == 5, "what waits for its turn has a token"
    replies.answer(Question(f"g{PER_TURN}", answers), HeartbeatResponse(0, "behind the other one of its group"))
    for _ in range(2):
        await asyncio.sleep(0)
    assert len(answers) == PER_TURN + 6
    assert [response for group, response in answers if group == f"g{PER_TURN}"][1] != CARRY_ON
    assert len(replies) == 0
