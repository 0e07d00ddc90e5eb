"""Logs that differ: a follower finds where, and ends with the leader's log. KIP-101's and KIP-279's traces, and more."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from coordinator.log.leader_epochs import NO_EPOCH
from coordinator.replication.fetch import FetchError, FetchPartition
from coordinator.replication.log import AppendAsFollower, ResetTo, TruncateTo
from tests.coordinator.replication.replicas import (
    A,
    B,
    apply,
    follows,
    leads,
    log_of,
    registration,
    replicate,
    serve,
    write,
)
from tests.simulation.replicas.log import SimLog


def test_a_follower_that_holds_a_part_of_the_leaders_log_truncates_nothing() -> None:
    log, copy = log_of(1, 1, 2, 2), log_of(1, 1)
    leader = leads(log, registered=registration(leader_epoch=3))
    orders = replicate(leader, log, follows(copy, leader_epoch=3), copy)
    assert [type(order) for order in orders] == [AppendAsFollower]
    assert copy.records == log.records
    assert copy.epochs.entries == [(1, 0), (2, 2)]


def test_kip_101_a_follower_that_restarts_keeps_what_is_above_its_high_watermark() -> None:
    """B has both records, and knows of one that it is committed. It starts again: by its high watermark it would cut the
    other, and, elected now, lose it for good."""
    log, copy = log_of(0, 0), log_of(0, 0)
    leader = leads(log, registered=registration(leader_epoch=1))
    assert replicate(leader, log, follows(copy, leader_epoch=1), copy) == []
    assert copy.end_offset == 2


def test_kip_101_the_old_leader_gives_up_what_the_new_one_never_had() -> None:
    """A wrote m2 at offset 1 in epoch 0 and was cut off; B was elected without it and wrote m3 there."""
    log, copy = log_of(0, 1), log_of(0, 0)
    leader = leads(log, registered=registration(leader=B, leader_epoch=2))
    orders = replicate(leader, log, follows(copy, A, leader_epoch=2), copy)
    assert orders[0] == TruncateTo(1)
    assert copy.records == log.records


def test_kip_279_two_fast_leader_changes_leave_nothing_of_the_one_between() -> None:
    """Leader of epoch 1 wrote at offsets 2 and 3 what none other got; the leader of 2 has only epoch 0, then wrote itself.

    Asked for epoch 1 the leader answers with epoch 0 and its end, 2. Had it answered with the beginning of the next epoch
    that it knows, the follower would keep records of epoch 1."""
    log, copy = log_of(0, 0, 2, 2, 2), log_of(0, 0, 1, 1)
    leader = leads(log, registered=registration(leader_epoch=3))
    orders = replicate(leader, log, follows(copy, leader_epoch=3), copy)
    assert orders[0] == TruncateTo(2)
    assert copy.records == log.records


def test_kip_279_several_fetches_when_the_follower_has_epochs_that_the_leader_never_saw() -> None:
    """Both were cut off in turn: the follower has 0 0 1 1 3 3, the leader 0 0 0 2 2. It does not know 3, and then not 1."""
    log, copy = log_of(0, 0, 0, 2, 2), log_of(0, 0, 1, 1, 3, 3)
    leader = leads(log, registered=registration(leader_epoch=4))
    orders = replicate(leader, log, follows(copy, leader_epoch=4), copy)
    assert orders[:2] == [TruncateTo(4), TruncateTo(2)]
    assert copy.records == log.records


def test_an_epoch_that_a_leader_began_and_never_wrote_in_is_not_its_last() -> None:
    """A led epoch 7 without a record; B, elected after it, has one of epoch 6 there that A lacks."""
    log, copy = log_of(5, 6), log_of(5)
    copy.begin_epoch(7)
    leader = leads(log, registered=registration(leader=B, leader_epoch=8))
    assert [type(order) for order in replicate(leader, log, follows(copy, A, leader_epoch=8), copy)] == [
        AppendAsFollower
    ]
    assert copy.epochs.entries == [(5, 0), (6, 1)]


def test_only_a_follower_of_the_same_epoch_is_believed() -> None:
    """The leader of 5 is the leader of 7 again, and another led 6 between. A fetch that the follower sent in epoch 5 is
    still on its way: its offset 3 is on the leader's history, but the follower has truncated to 2 in epoch 6 since."""
    log = log_of(4, 4, 5)
    leader = leads(log, registered=registration(leader_epoch=7, isr=(A, B)))
    late = FetchPartition(B, leader_epoch=5, fetch_offset=3, last_epoch=5, log_start_offset=0)
    assert serve(leader, log, late).error_code is FetchError.FENCED_LEADER_EPOCH
    assert leader.high_watermark == 0
    early = late._replace(leader_epoch=8)
    assert serve(leader, log, early).error_code is FetchError.UNKNOWN_LEADER_EPOCH
    assert not serve(leader, log, late._replace(leader_epoch=7)).error_code
    assert leader.high_watermark == 3, "the very same words of a follower of this epoch count"


def test_a_second_copy_of_an_answer_that_said_the_logs_differ_cuts_nothing() -> None:
    """The follower has come back to the same length meanwhile, with the leader's records, and has acknowledged them."""
    log, copy = log_of(0, 1), log_of(0, 0)
    leader = leads(log, registered=registration(leader_epoch=2))
    follower = follows(copy, leader_epoch=2)
    request = follower.fetch(0)
    assert request is not None
    answer = serve(leader, log, request)
    assert apply(follower, copy, answer) == TruncateTo(1)
    replicate(leader, log, follower, copy)
    assert copy.end_offset == answer.fetch_offset
    assert apply(follower, copy, answer) is None
    assert copy.records == log.records


def test_a_follower_behind_the_leaders_start_begins_anew_there() -> None:
    log, copy = log_of(1, 1, 1, 1, 1), log_of(1)
    log.delete_before(3)
    leader = leads(log, registered=registration(leader_epoch=2))
    assert replicate(leader, log, follows(copy, leader_epoch=2), copy)[0] == ResetTo(3)
    assert (copy.start_offset, copy.records) == (3, log.records)


def test_a_follower_whose_epochs_the_leader_has_deleted_keeps_nothing_that_none_can_compare() -> None:
    """Both wrote at offset 1; the leader's records up to 3 are deleted. Cut to 3 the follower would keep its own record 1,
    and show it to readers when it leads before it has deleted it."""
    log, copy = log_of(0, 2, 2, 2, 2), log_of(0, 0, 0, 0)
    log.delete_before(3)
    leader = leads(log, registered=registration(leader_epoch=3))
    assert replicate(leader, log, follows(copy, leader_epoch=3), copy)[0] == ResetTo(3)
    assert (copy.start_offset, copy.records) == (3, log.records)


def test_a_follower_that_ends_behind_the_leader_with_nothing_to_compare_begins_anew() -> None:
    log, copy = log_of(1, 1), log_of(start_offset=9)
    leader = leads(log, registered=registration(leader_epoch=2))
    request = follows(copy, leader_epoch=2).fetch(0)
    assert request is not None
    assert request.last_epoch == NO_EPOCH
    assert serve(leader, log, request).error_code is FetchError.OFFSET_OUT_OF_RANGE


def test_epochs_whose_records_compaction_removed_reach_the_follower() -> None:
    """All of epoch 2 is superseded, and the batch before it covers its offsets now. By batches alone the follower would be
    at epoch 1 where the leader's table says 2, and be told to truncate for ever."""
    log = SimLog()
    for epoch, key in ((1, 0), (2, 1), (2, 1), (3, 1)):
        log.begin_epoch(epoch)
        log.append([(key, epoch)])
    log.begin_epoch(3)
    log.compact(log.end_offset, 0, 1_000, joins=False)
    assert [batch.leader_epoch for batch in log.batches] == [1, 3]
    copy = SimLog()
    leader = leads(log, registered=registration(leader_epoch=4))
    orders = replicate(leader, log, follows(copy, leader_epoch=4), copy, most=1)
    assert {type(order) for order in orders} == {AppendAsFollower}
    assert copy.records == log.records
    assert copy.epochs.entries == [(1, 0), (2, 1), (3, 3)]


def test_a_batch_that_compaction_joined_is_cut_for_a_follower_that_ends_within_it() -> None:
    log, copy = log_of(1, 1, 1, 1), log_of(1, 1)
    log.compact(4, 0, 1_000, joins=True)
    assert len(log.batches) == 1
    leader = leads(log, registered=registration(leader_epoch=2))
    replicate(leader, log, follows(copy, leader_epoch=2), copy)
    assert copy.records == log.records
    assert [batch.base_offset for batch in copy.batches] == [0, 1, 2]


def histories(sizes: list[int], cuts: list[int]) -> tuple[SimLog, SimLog]:
    """Two logs that led in turn: each begins its epoch with what it has of the other's, up to a point."""
    logs = (SimLog(), SimLog())
    for epoch, (size, cut) in enumerate(zip(sizes, cuts, strict=True), 1):
        own, other = logs[epoch % 2], logs[1 - epoch % 2]
        # As replication does: what both have is a common beginning, up to where the follower was when it was elected.
        common = 0
        while common < min(own.end_offset, other.end_offset) and own.records[common] == other.records[common]:
            common += 1
        if cut % 2 and common == own.end_offset:
            upto = min(other.end_offset, common + cut)
            own.append_as_follower(
                other.read(common, upto, 99), other.epochs.within(common, upto)
            ) if upto > common else None
        own.begin_epoch(epoch)
        write(own, size)
    return logs


@settings(max_examples=200)
@given(st.data())
def test_whatever_two_leaders_wrote_in_turn_the_follower_ends_with_the_leaders_log(data: st.DataObject) -> None:
    length = data.draw(st.integers(1, 7))
    sizes = data.draw(st.lists(st.integers(0, 3), min_size=length, max_size=length))
    cuts = data.draw(st.lists(st.integers(0, 4), min_size=length, max_size=length))
    first, second = histories(sizes, cuts)
    log, copy = (first, second) if data.draw(st.booleans()) else (second, first)
    common = 0
    while common < min(log.end_offset, copy.end_offset) and log.records[common] == copy.records[common]:
        common += 1
    leader = leads(log, registered=registration(leader_epoch=length + 1))
    orders = replicate(leader, log, follows(copy, leader_epoch=length + 1), copy, most=data.draw(st.integers(1, 3)))
    cut_to = min((order.offset for order in orders if isinstance(order, TruncateTo)), default=copy.end_offset)
    assert cut_to >= common, "more was given up than differed"
    assert copy.records == log.records
    assert copy.batches == log.batches
