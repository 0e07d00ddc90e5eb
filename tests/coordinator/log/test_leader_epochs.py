"""Leader epochs of a log, by example and against a plain list with the epoch of each record."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from coordinator.log.leader_epochs import NO_EPOCH, EpochEnd, LeaderEpochs


def test_an_epoch_ends_where_the_next_begins_and_the_last_with_the_log() -> None:
    epochs = LeaderEpochs([(2, 0), (3, 10), (6, 25)])
    assert epochs.end_of(2, 40) == EpochEnd(2, 10)
    assert epochs.end_of(3, 40) == EpochEnd(3, 25)
    assert epochs.end_of(6, 40) == EpochEnd(6, 40)


def test_asked_for_an_epoch_that_it_does_not_have_it_names_the_largest_below() -> None:
    epochs = LeaderEpochs([(2, 0), (3, 10), (6, 25)])
    assert epochs.end_of(5, 40) == EpochEnd(3, 25)
    assert epochs.end_of(9, 40) == EpochEnd(6, 40)


def test_what_is_older_than_all_it_knows_is_not_judged() -> None:
    assert LeaderEpochs([(4, 12), (6, 25)]).end_of(1, 40) == EpochEnd(1, 12)


def test_an_epoch_without_records_is_replaced_also_by_an_older_one() -> None:
    epochs = LeaderEpochs([(2, 0), (7, 10)])
    assert epochs.begin(6, 10)
    assert epochs.entries == [(2, 0), (6, 10)]


def test_an_epoch_begins_once() -> None:
    epochs = LeaderEpochs([(2, 0)])
    assert not epochs.begin(2, 5)
    assert epochs.entries == [(2, 0)]


def test_epochs_of_records_never_fall() -> None:
    epochs = LeaderEpochs([(2, 0), (7, 10)])
    with pytest.raises(ValueError, match="epoch 6 cannot begin at offset 12, behind records of epoch 7"):
        epochs.begin(6, 12)


def test_deleted_records_take_their_epochs_along_and_the_first_that_is_left_keeps_its_own() -> None:
    epochs = LeaderEpochs([(2, 0), (3, 10), (6, 25)])
    epochs.raise_start(15)
    assert epochs.entries == [(3, 15), (6, 25)]
    epochs.raise_start(40)
    assert epochs.entries == [(6, 40)]


RISING = st.lists(st.integers(0, 4), max_size=30).map(lambda steps: [sum(steps[: n + 1]) for n in range(len(steps))])
"""The epoch of each record of a log, from offset 0 on."""


def table(records: list[int]) -> LeaderEpochs:
    epochs = LeaderEpochs()
    for offset, epoch in enumerate(records):
        epochs.begin(epoch, offset)
    return epochs


@given(RISING, st.integers(0, 130))
def test_end_of_is_what_a_look_at_every_record_tells(records: list[int], asked: int) -> None:
    found = table(records).end_of(asked, len(records))
    below = [epoch for epoch in records if epoch <= asked]
    assert found == EpochEnd(below[-1] if below else asked, len(below))


@given(RISING, st.integers(0, 30))
def test_at_and_cut_are_those_of_the_records(records: list[int], end: int) -> None:
    epochs = table(records)
    assert [epochs.at(offset) for offset in range(len(records))] == records
    assert epochs.at(-1) == NO_EPOCH
    epochs.cut(end)
    assert epochs.entries == table(records[:end]).entries


@given(RISING, st.integers(0, 30), st.integers(0, 30))
def test_a_follower_that_is_given_a_range_with_its_epochs_has_the_leaders_table(
    records: list[int], first: int, length: int
) -> None:
    leader, follower = table(records), table(records[:first])
    end = min(len(records), first + length)
    for epoch, start in leader.within(first, end):
        follower.begin(epoch, start)
    assert follower.entries == table(records[: max(first, end)]).entries
