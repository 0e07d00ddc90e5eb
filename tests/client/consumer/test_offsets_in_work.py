"""How far may be committed: up to the first record that is not done, whatever is done behind it."""

from __future__ import annotations

from bisect import insort

import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from client.consumer.offsets_in_work import OffsetsInWork
from client.consumer.partition import PartitionState
from protocol.subscription import TopicPartition


@given(st.lists(st.integers(0, 3), min_size=1, max_size=40), st.data())
def test_in_whatever_order_records_are_done_only_what_has_no_gap_below_may_be_committed(
    gaps: list[int], data: st.DataObject
) -> None:
    """``gaps``: offsets that compaction has taken out before each record."""
    offsets: list[int] = []
    for gap in gaps:
        offsets.append((offsets[-1] + 1 if offsets else 0) + gap)
    position = offsets[-1] + 1
    work, unfinished = OffsetsInWork(), list(offsets)
    for offset in offsets:
        work.take(offset)
    reached = work.committable(position)
    assert reached == offsets[0]
    for offset in data.draw(st.permutations(offsets)):
        work.finish(offset)
        unfinished.remove(offset)
        committable = work.committable(position)
        assert committable == min(unfinished, default=position)
        assert committable >= reached, "what may be committed does not go back"
        assert len(work) == sum(each >= committable for each in offsets)
        assert (work.unfinished, work.first) == (len(unfinished), min(unfinished, default=None))
        reached = committable
    assert reached == position
    assert len(work) == 0


class HandlersOfOnePartition(RuleBasedStateMachine):
    """Records of one partition that handlers have, in any order, with seeks, commits by name and the end of the work.

    ``taken`` has what handlers have at the moment, with the epoch at which they got it.
    """

    def __init__(self) -> None:
        super().__init__()
        self.state = PartitionState(TopicPartition("t", 0), "reset")
        self.state.move_to(0)
        self.taken: list[tuple[int, int]] = []
        self.set_aside: list[int] = []
        self.said = 0
        self.done: set[int] = set()

    @rule(gap=st.integers(0, 2))
    def take(self, gap: int) -> None:
        offset = self.state.position + gap
        self.state.work.take(offset)
        self.state.position = offset + 1
        self.done.update(range(offset - gap, offset))  # there is no record
        self.taken.append((offset, self.state.epoch))

    @precondition(lambda self: self.taken)
    @rule(data=st.data())
    def finish(self, data: st.DataObject) -> None:
        offset, epoch = self.taken.pop(data.draw(st.integers(0, len(self.taken) - 1)))
        self.state.finish(offset, epoch)
        if epoch == self.state.epoch:
            self.done.add(offset)

    @precondition(lambda self: self.taken)
    @rule(data=st.data())
    def fail(self, data: st.DataObject) -> None:
        offset, epoch = self.taken.pop(data.draw(st.integers(0, len(self.taken) - 1)))
        self.state.set_aside(epoch)
        if epoch == self.state.epoch:
            insort(self.set_aside, offset)

    @precondition(lambda self: self.taken)
    @rule(data=st.data())
    def drop(self, data: st.DataObject) -> None:
        """One that waited for its turn is not begun."""
        offset, epoch = self.taken.pop(data.draw(st.integers(0, len(self.taken) - 1)))
        self.state.drop(epoch)
        if epoch == self.state.epoch:
            insort(self.set_aside, offset)

    @rule(offset=st.integers(0, 30))
    def seek(self, offset: int) -> None:
        self.state.move_to(offset)
        self.set_aside, self.said = [], 0
        self.done = set(range(offset))

    @rule(offset=st.integers(0, 30))
    def commit_by_name(self, offset: int) -> None:
        self.state.say_done(offset)
        self.said = max(self.said, min(offset, self.state.position))

    @precondition(lambda self: not self.taken)
    @rule()
    def end(self) -> None:
        self.state.give_back_all()
        assert not self.state.in_work
        if self.set_aside:
            expected = max(self.set_aside[0], self.said)
            assert (self.state.position, self.state.done) == (expected, expected), (
                "the first that is not done comes next"
            )
            self.done = set(range(expected))
        self.set_aside, self.said = [], 0

    @invariant()
    def nothing_is_done_that_is_not(self) -> None:
        if any(epoch != self.state.epoch for _, epoch in self.taken):
            return  # it stays where it was until the handlers from before the seek are through
        undone = [offset for offset, _ in self.taken] + self.set_aside
        assert self.state.done <= max(self.said, min(undone, default=self.state.position))

    @invariant()
    def work_is_counted(self) -> None:
        assert self.state.in_work == bool(self.taken or self.set_aside)


TestHandlersOfOnePartition = HandlersOfOnePartition.TestCase


def test_records_are_taken_in_the_order_of_the_log() -> None:
    work = OffsetsInWork()
    work.take(5)
    with pytest.raises(AssertionError):
        work.take(5)
