"""Decisions in slices: what is about the same waits for the last slice and follows in order; a drop ends them."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable

import pytest

from coordinator.runtime.effects import Effects, Slices
from coordinator.runtime.unfinished import UnfinishedDecisions


class Turns:
    """Carries out slices and does what was held back, one turn at a time, and says what happened."""

    def __init__(self) -> None:
        self.happened: list[str] = []
        self.queue: deque[Callable[[], bool]] = deque()
        self.unfinished = UnfinishedDecisions(
            self._carry_out,
            lambda _, work: self.queue.append(work),
            lambda error: self.happened.append(repr(error)),
        )

    def decide(self, about: str, slices: int) -> None:
        """A decision of so many slices; the first is carried out at once."""
        effects = Effects()
        effects.begin(about, sliced(about, slices, effects))
        self._carry_out(effects)

    def _carry_out(self, effects: Effects) -> None:
        self.happened += [note.event for note in effects.notes]
        if effects.rest is not None:
            self.unfinished.add(effects.rest)

    def come(self, about: str, what: str) -> None:
        """Something comes: it happens now or is held back."""
        if about in self.unfinished:
            self.unfinished.hold(about, lambda: self.happened.append(what))
        else:
            self.happened.append(what)

    def turn(self) -> None:
        """One turn of the loop."""
        work = self.queue.popleft()
        if work():
            self.queue.append(work)


def sliced(about: str, count: int, effects: Effects) -> Slices:
    for number in range(count):
        if number:
            effects = yield
        effects.note(f"{about} {number}")


def test_what_is_about_the_same_waits_for_the_last_slice_and_follows_in_its_order() -> None:
    turns = Turns()
    turns.decide("large", 3)
    turns.come("large", "first")
    turns.come("small", "at once")
    turns.turn()
    turns.come("large", "second")
    turns.turn()
    assert turns.happened == ["large 0", "at once", "large 1", "large 2"]
    while turns.queue:
        turns.turn()
    assert turns.happened[4:] == ["first", "second"]
    assert not turns.queue
    assert not turns.unfinished.decisions
    turns.come("large", "third")
    assert turns.happened[6:] == ["third"]


def test_a_decision_of_one_slice_holds_nothing_back() -> None:
    turns = Turns()
    turns.decide("small", 1)
    turns.come("small", "at once")
    assert turns.happened == ["small 0", "at once"]


def test_what_was_held_back_may_have_slices_of_its_own() -> None:
    turns = Turns()
    turns.decide("large", 2)
    turns.unfinished.hold("large", lambda: turns.decide("large", 2))
    turns.come("large", "last")
    while turns.queue:
        turns.turn()
    assert turns.happened == ["large 0", "large 1", "large 0", "large 1", "last"]


def test_a_crowd_that_was_held_back_takes_more_than_one_turn_and_is_not_overtaken() -> None:
    turns = Turns()
    turns.decide("large", 2)
    for number in range(100):
        turns.come("large", str(number))
    while turns.happened[-1] == "large 0" or turns.happened[-1] == "large 1":
        turns.turn()
    assert 2 < len(turns.happened) < 102
    turns.come("large", "100")
    while turns.queue:
        turns.turn()
    assert turns.happened[2:] == [str(number) for number in range(101)]
    assert not turns.unfinished.decisions


def test_decisions_about_different_things_are_carried_out_side_by_side() -> None:
    turns = Turns()
    turns.decide("a", 2)
    turns.decide("b", 3)
    while turns.queue:
        turns.turn()
    assert turns.happened == ["a 0", "b 0", "a 1", "b 1", "b 2"]


def test_given_up_nothing_more_is_carried_out_and_what_was_held_back_happens_at_once() -> None:
    turns = Turns()
    turns.decide("large", 3)
    turns.come("large", "held")
    turns.unfinished.give_up()
    turns.turn()
    assert turns.happened == ["large 0", "held"]
    assert not turns.queue
    assert "large" not in turns.unfinished


def test_a_fault_of_a_slice_ends_the_decision_and_is_told() -> None:
    def work() -> Slices:
        yield
        raise RuntimeError("a fault of ours")

    turns = Turns()
    effects = Effects()
    effects.begin("large", work())
    assert effects.rest is not None
    turns.unfinished.add(effects.rest)
    turns.come("large", "held")
    turns.turn()
    turns.turn()
    assert turns.happened == ["RuntimeError('a fault of ours')", "held"]
    assert not turns.queue


def test_a_second_decision_about_the_same_is_a_fault() -> None:
    turns = Turns()
    turns.decide("large", 3)
    with pytest.raises(AssertionError, match="two decisions about large at once"):
        turns.decide("large", 3)
