"""The follower's rules: what it acknowledges, what it applies, when it begins anew."""

from __future__ import annotations

from dataclasses import replace

import pytest

from coordinator.log.leader_epochs import NotAContinuationError
from coordinator.replication.fetch import FetchAnswer, FetchError
from coordinator.replication.follower import Follower
from coordinator.replication.log import AppendAsFollower, ResetTo, TruncateTo
from tests.coordinator.replication.replicas import (
    CONFIG,
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
from tests.simulation.replicas.log import Batch, Record, SimLog

RETENTION_MS = CONFIG.delete_retention_ms


def test_what_is_not_on_disk_is_not_acknowledged() -> None:
    log, copy = log_of(1, 1), SimLog()
    leader, follower = leads(log, registered=registration(leader_epoch=2)), follows(copy, leader_epoch=2)
    request = follower.fetch(0)
    assert request is not None
    order = follower.answered(serve(leader, log, request), 0)
    assert isinstance(order, AppendAsFollower)
    copy.append_as_follower(order.records, order.epochs)
    assert follower.fetch(0) is None
    copy.flush()
    again = follower.fetch(0)
    assert again is not None
    assert (again.fetch_offset, again.last_epoch) == (2, 1)


@pytest.mark.parametrize("field", ["leader_epoch", "broker_epoch", "fetch_offset", "last_epoch"])
def test_an_answer_counts_only_if_all_that_it_echoes_is_still_so(field: str) -> None:
    log, copy = log_of(1, 1), log_of(1)
    leader, follower = leads(log, registered=registration(leader_epoch=2)), follows(copy, leader_epoch=2)
    request = follower.fetch(0)
    assert request is not None
    answer = serve(leader, log, request)
    assert follower.is_current(answer)
    stale = answer._replace(**{field: getattr(answer, field) + 1})
    assert not follower.is_current(stale)
    assert follower.answered(stale, 0) is None


def test_while_records_are_on_their_way_to_the_disk_no_answer_is_applied() -> None:
    log, copy = log_of(1, 1, 1), log_of(1)
    leader, follower = leads(log, registered=registration(leader_epoch=2)), follows(copy, leader_epoch=2)
    request = follower.fetch(0)
    assert request is not None
    answer = serve(leader, log, request)
    order = follower.answered(answer, 0)
    assert isinstance(order, AppendAsFollower)
    copy.append_as_follower(order.records[:1], ((1, 1),))
    assert follower.answered(answer._replace(fetch_offset=2), 0) is None


def test_the_high_watermark_follows_the_leaders_up_to_the_own_end_and_never_falls() -> None:
    log, copy = log_of(1, 1, 1, 1), SimLog()
    leader, follower = leads(log, registered=registration(leader_epoch=2)), follows(copy, leader_epoch=2)
    request = follower.fetch(0)
    assert request is not None
    answer = serve(leader, log, request, most=2)._replace(high_watermark=3)
    apply(follower, copy, answer)
    assert follower.high_watermark == 2
    request = follower.fetch(0)
    assert request is not None
    apply(follower, copy, serve(leader, log, request)._replace(high_watermark=-1))
    assert follower.high_watermark == 2


def test_an_answer_that_says_that_logs_differ_or_nothing_at_all_says_nothing_of_what_is_committed() -> None:
    log, copy = log_of(0, 1, 1), log_of(0, 0, 0)
    leader, follower = leads(log, registered=registration(leader_epoch=2)), follows(copy, leader_epoch=2)
    request = follower.fetch(0)
    assert request is not None
    differs = serve(leader, log, request)._replace(high_watermark=3, log_start_offset=3)
    assert differs.diverging_end == 1
    for answer in (differs, differs._replace(diverging_end=-1, error_code=FetchError.STALE_BROKER_EPOCH)):
        assert follower.done(answer) is None
    assert follower.high_watermark == 0


def test_a_log_of_a_later_epoch_follows_none_of_an_earlier_one() -> None:
    """The metadata that this node sees is behind. Its leader of then would have it truncate what was committed since."""
    assert follows(log_of(4, 5, 6), leader_epoch=5).fetch(0) is None


def test_the_log_begins_where_the_leaders_does() -> None:
    log, copy = log_of(1, 1, 1, 1), log_of(1, 1)
    leader, follower = leads(log, registered=registration(leader_epoch=2)), follows(copy, leader_epoch=2)
    replicate(leader, log, follower, copy)
    log.delete_before(3)
    request = follower.fetch(0)
    assert request is not None
    apply(follower, copy, serve(leader, log, request))
    assert (copy.start_offset, copy.records) == (3, log.records)


def test_it_never_deletes_beyond_its_own_end() -> None:
    copy = log_of(1, 1)
    follower = follows(copy)
    answer = FetchAnswer(1, B.broker_epoch, 2, 1, log_start_offset=9)
    deletion = follower.done(answer)
    assert deletion is not None
    assert deletion.offset == 2


# Compacted logs


def compacted() -> SimLog:
    """Key 0 was set, then deleted, and its tombstone is gone; offsets 0 to 4, the last a record of another key."""
    log = SimLog()
    log.begin_epoch(1)
    for record in ((0, 7), (1, 1), (0, None), (1, 2), (1, 3)):
        log.append([record])
    log.begin_epoch(1)
    log.compact(4, 0, RETENTION_MS, joins=True)
    log.compact(5, RETENTION_MS, RETENTION_MS, joins=True)
    assert [record[1:] for record in log.records.values()] == [(1, 3)]
    return log


def followed(caught_up_ms: int | None, now_ms: int) -> tuple[list[object], SimLog]:
    """What a follower does that has the first record, whose tombstone is gone since."""
    log, copy = compacted(), SimLog()
    copy.begin_epoch(1)
    copy.append([(0, 7)])
    copy.begin_epoch(1)
    leader = leads(log, registered=registration(leader_epoch=2))
    follower = follows(copy, leader_epoch=2, caught_up_ms=caught_up_ms)
    return replicate(leader, log, follower, copy, now_ms), copy


@pytest.mark.parametrize("caught_up_ms", [None, 0])
def test_who_may_have_missed_tombstones_begins_anew(caught_up_ms: int | None) -> None:
    orders, copy = followed(caught_up_ms, RETENTION_MS)
    assert orders[0] == ResetTo(0)
    assert copy.records == compacted().records
    assert 0 not in {key for _, key, _ in copy.records.values()}, "a key that was deleted lives again"


def test_who_was_there_lately_goes_on() -> None:
    orders, _ = followed(1, RETENTION_MS)
    assert not any(isinstance(order, ResetTo) for order in orders)


@pytest.mark.parametrize("caught_up_ms", [None, 0])
def test_who_begins_anew_copies_once_however_short_tombstones_stay(caught_up_ms: int | None) -> None:
    """``delete.retention.ms`` may be 0, or shorter than a copy takes."""
    log, copy = log_of(1, 1, 1, 1, 1), log_of(1)
    log.compact(5, 0, 0, joins=False)
    leader = leads(log, registered=registration(leader_epoch=2))
    follower = Follower(B, 2, copy, replace(CONFIG, delete_retention_ms=0), caught_up_ms=caught_up_ms)
    orders = replicate(leader, log, follower, copy, RETENTION_MS, most=1)
    assert [order for order in orders if isinstance(order, ResetTo)] == [ResetTo(0)]
    assert copy.records == log.records


def test_a_copy_during_which_tombstones_may_have_gone_begins_anew_again() -> None:
    log, copy = SimLog(), SimLog()
    log.begin_epoch(1)
    for record in ((0, 7), (1, 1), (0, None), (1, 2), (1, 3)):
        log.append([record])
    log.begin_epoch(1)
    log.compact(1, 0, 0, joins=False)
    leader = leads(log, registered=registration(leader_epoch=2))
    follower = Follower(B, 2, copy, replace(CONFIG, delete_retention_ms=0), caught_up_ms=None)
    request = follower.fetch(0)
    assert request is not None
    assert isinstance(apply(follower, copy, serve(leader, log, request, most=1)), AppendAsFollower)
    log.compact(3, 0, 0, joins=False)
    log.compact(4, 1, 0, joins=False)  # key 0 is deleted, and so is what said so
    orders = replicate(leader, log, follower, copy, now_ms=1, most=1)
    assert orders[0] == ResetTo(0)
    assert copy.records == log.records


def test_a_new_replica_copies_once_and_is_caught_up_when_it_has_what_is_committed() -> None:
    log, copy = compacted(), SimLog()
    leader = leads(log, registered=registration(leader_epoch=2), high_watermark=5)
    follower = follows(copy, leader_epoch=2, caught_up_ms=None)
    orders = replicate(leader, log, follower, copy, now_ms=77, most=1)
    assert all(isinstance(order, AppendAsFollower) for order in orders)
    assert follower.caught_up_ms == 77


def test_an_answer_that_was_long_on_its_way_says_nothing_of_now() -> None:
    log, copy = log_of(1), log_of(1)
    leader = leads(log, registered=registration(leader_epoch=2), high_watermark=1)
    follower = follows(copy, leader_epoch=2)
    request = follower.fetch(50)
    assert request is not None
    answer = serve(leader, log, request)
    write(log)
    assert follower.fetch(90) is not None
    apply(follower, copy, answer, 90)
    assert follower.caught_up_ms == 50


# What a leader may not send

_A_BATCH = Batch(2, 4, 3, (Record(2, 0, 0), Record(3, 0, 0)))


@pytest.mark.parametrize(
    ("batches", "epochs", "why"),
    [
        ([_A_BATCH._replace(base_offset=1)], [(3, 2)], "the log ends at offset 2, a batch begins at 1"),
        ([_A_BATCH, _A_BATCH._replace(base_offset=5)], [(3, 2)], "the log ends at offset 4, a batch begins at 5"),
        ([_A_BATCH], [], "do not begin at offset 2"),
        ([_A_BATCH], [(3, 3)], "do not begin at offset 2"),
        ([_A_BATCH], [(1, 2)], "behind epoch 2"),
        ([_A_BATCH], [(3, 2), (3, 3)], "do not rise"),
        ([_A_BATCH], [(2, 2)], "is of epoch 3, its offsets of epoch 2"),
    ],
)
def test_what_does_not_continue_the_log_is_refused_and_the_log_is_as_it_was(
    batches: list[Batch], epochs: list[tuple[int, int]], why: str
) -> None:
    copy = log_of(2, 2)
    with pytest.raises(NotAContinuationError, match=why):
        copy.append_as_follower(batches, epochs)
    assert (copy.end_offset, copy.epochs.entries) == (2, [(2, 0)])


def test_a_truncation_that_reaches_below_the_own_start_is_a_new_beginning() -> None:
    copy = log_of(1, 1, start_offset=5)
    follower = follows(copy)
    answer = FetchAnswer(1, B.broker_epoch, 7, 1, diverging_epoch=0, diverging_end=3, log_start_offset=2)
    assert follower.answered(answer, 0) == ResetTo(2)
    assert follower.answered(answer._replace(diverging_end=6), 0) == TruncateTo(5)
