"""The leader's rules: who is believed, what is committed, who is in sync, what is deleted."""

from __future__ import annotations

from dataclasses import replace

import pytest

from coordinator.replication.fetch import FetchError, FetchPartition
from coordinator.replication.leader import MAX_PENDING, Leader, Proposal
from coordinator.replication.partition import Incarnation, LiveNode, PartitionRegistration
from tests.coordinator.replication.replicas import CONFIG, LIVE, A, B, C, leads, log_of, registration, write
from tests.simulation.replicas.log import SimLog

LAG_MS = CONFIG.replica_lag_time_max_ms


def ask(
    follower: Incarnation, offset: int, last_epoch: int = 1, leader_epoch: int = 1, start: int = 0
) -> FetchPartition:
    """A fetch of a follower that has everything below ``offset``."""
    return FetchPartition(follower, leader_epoch, offset, last_epoch if offset else -1, start)


def led(records: int = 3, isr: tuple[Incarnation, ...] = (A, B, C), min_isr: int = 2) -> tuple[Leader, SimLog]:
    """A leader of epoch 1 that has written ``records`` in it."""
    log = SimLog()
    leader = leads(log, registered=registration(isr=isr, min_isr=min_isr))
    write(log, records)
    leader.advance()
    return leader, log


def with_isr(leader: Leader, isr: tuple[Incarnation, ...], min_isr: int = 2) -> PartitionRegistration:
    """The registration of ``leader``'s epoch with other in-sync replicas."""
    return registration(isr=isr, min_isr=min_isr, leader_epoch=leader.leader_epoch)


# Who is believed


@pytest.mark.parametrize(
    ("live", "heard", "error"),
    [
        (None, (), FetchError.STALE_BROKER_EPOCH),
        (B.broker_epoch + 1, (), FetchError.STALE_BROKER_EPOCH),
        (B.broker_epoch, (), FetchError.NONE),
    ],
)
def test_only_the_incarnation_that_is_registered_is_believed(
    live: int | None, heard: tuple[int, ...], error: FetchError
) -> None:
    leader, _ = led()
    nodes = {} if live is None else {B.node: LiveNode(live, 1)}
    assert leader.fetch(ask(B, 3), nodes, 0).error_code is error


def test_what_a_dead_incarnation_had_sent_does_not_count_for_the_one_that_lives() -> None:
    """Also when this node's picture of the metadata is behind, and still has the dead one."""
    leader, _ = led(isr=(A, B))
    again = Incarnation(B.node, 40)
    assert not leader.fetch(ask(again, 1), {B.node: LiveNode(40, 1)}, 0).error_code
    assert leader.fetch(ask(B, 3), LIVE, 0).error_code is FetchError.STALE_BROKER_EPOCH
    leader.observe(with_isr(leader, (A, again)), 101)
    assert leader.fetch(ask(B, 3), LIVE, 0).error_code is FetchError.STALE_BROKER_EPOCH
    assert leader.high_watermark == 1


def test_a_node_without_a_replica_is_refused() -> None:
    leader, _ = led()
    stranger = Incarnation(9, 50)
    answer = leader.fetch(ask(stranger, 0), {9: LiveNode(50, 1)}, 0)
    assert answer.error_code is FetchError.UNKNOWN_TOPIC_OR_PARTITION


def test_an_offset_of_a_log_that_differs_is_no_acknowledgement() -> None:
    log = log_of(0)
    leader = leads(log, registered=registration(isr=(A, B)))
    write(log, 3)
    assert leader.fetch(ask(B, 3, last_epoch=0), LIVE, 0).diverging_end == 1
    assert leader.high_watermark == 0


# What is committed


def test_the_high_watermark_is_what_every_in_sync_replica_and_the_own_disk_have() -> None:
    leader, log = led()
    leader.fetch(ask(B, 3), LIVE, 0)
    assert leader.high_watermark == 0
    leader.fetch(ask(C, 2), LIVE, 0)
    assert leader.high_watermark == 2
    log.append([(0, 1)])
    log.write()
    leader.fetch(ask(B, 4), LIVE, 0)
    leader.fetch(ask(C, 4), LIVE, 0)
    assert leader.high_watermark == 3, "the leader's own disk does not have the last one yet"
    log.flush()
    assert leader.advance()
    assert leader.high_watermark == 4


def test_a_single_replica_commits_what_is_on_its_disk() -> None:
    log = log_of(1, 1)
    registered = PartitionRegistration((1,), A, 2, {1: A.broker_epoch}, 1)
    leader = leads(log, registered=registered)
    assert (leader.high_watermark, leader.knows_high_watermark) == (2, True)


def test_too_few_in_sync_replicas_commit_nothing() -> None:
    leader, _ = led(isr=(A,), min_isr=2)
    assert leader.high_watermark == 0


def test_followers_are_told_the_high_watermark_once_nothing_above_it_can_be_committed() -> None:
    log = log_of(1, 1, 1)
    leader = leads(log, registered=registration(leader_epoch=2, isr=(A, B)), high_watermark=1)
    assert leader.fetch(ask(B, 2, leader_epoch=2), LIVE, 0).high_watermark == -1
    assert leader.fetch(ask(B, 3, leader_epoch=2), LIVE, 0).high_watermark == 3


def test_acks_all_is_refused_early_when_too_few_are_caught_up_or_were_lately() -> None:
    leader, log = led(isr=(A, B))
    assert leader.has_enough_in_sync(LIVE, LAG_MS - 1)
    assert not leader.has_enough_in_sync(LIVE, LAG_MS)
    leader.fetch(ask(B, 3), LIVE, LAG_MS)
    assert leader.has_enough_in_sync(LIVE, 100 * LAG_MS), "it has everything, and is not heard before there is more"
    before = log.end_offset
    write(log)
    leader.appended(before, 100 * LAG_MS)
    assert leader.has_enough_in_sync(LIVE, 101 * LAG_MS - 1)
    assert not leader.has_enough_in_sync(LIVE, 101 * LAG_MS)
    assert not leader.has_enough_in_sync({A.node: LIVE[A.node]}, 100 * LAG_MS), "its live key is gone"


# Who is in sync


def proposed(leader: Leader, now_ms: int = 0, live: dict[int, LiveNode] | None = None) -> Proposal:
    """The proposal that is due."""
    proposal = leader.propose(LIVE if live is None else live, now_ms)
    assert proposal is not None
    return proposal


def test_who_lags_leaves_and_who_has_no_live_key_leaves_at_once() -> None:
    leader, _ = led()
    assert leader.propose(LIVE, LAG_MS - 1) is None
    leader.fetch(ask(B, 3), LIVE, LAG_MS - 1)
    assert proposed(leader, LAG_MS).registration.isr == {1: 11, 2: 12}
    other, _ = led()
    proposal = proposed(other, 0, {node: LIVE[node] for node in (1, 3)})
    assert proposal.registration.isr == {1: 11, 3: 13}
    assert (proposal.partition_epoch, proposal.leader, proposal.joining) == (100, A, ())


def test_they_never_become_fewer_than_the_minimum() -> None:
    leader, _ = led()
    isr = proposed(leader, LAG_MS, {1: LIVE[1]}).registration.isr
    assert len(isr) == 2


def test_of_two_that_lag_the_dead_one_leaves() -> None:
    leader, _ = led()
    isr = proposed(leader, LAG_MS, {node: LIVE[node] for node in (1, 2)}).registration.isr
    assert isr == {1: 11, 2: 12}


def test_who_has_everything_replaces_a_dead_member_at_the_minimum() -> None:
    leader, _ = led(isr=(A, B))
    leader.fetch(ask(C, 3), LIVE, 0)
    proposal = proposed(leader, 0, {node: LIVE[node] for node in (1, 3)})
    assert proposal.registration.isr == {1: 11, 3: 13}
    assert proposal.joining == (C,)


def test_who_joins_has_everything_below_the_start_of_the_epoch() -> None:
    """The high watermark is a hint of before: what lies between it and the start may be committed."""
    log = log_of(1, 1, 1, 1)
    leader = leads(log, registered=registration(leader_epoch=2, isr=(A, B)), high_watermark=1)
    leader.fetch(ask(C, 3, leader_epoch=2), LIVE, 0)
    assert leader.propose(LIVE, 0) is None
    leader.fetch(ask(C, 4, leader_epoch=2), LIVE, 0)
    assert proposed(leader).joining == (C,)


def test_who_is_draining_does_not_join() -> None:
    leader, _ = led(isr=(A, B))
    leader.fetch(ask(C, 3), LIVE, 0)
    assert leader.propose({**LIVE, C.node: C_DRAINING}, 0) is None


C_DRAINING = LIVE[C.node]._replace(accepting=False)


def test_a_member_that_came_back_joins_with_its_new_broker_epoch() -> None:
    leader, _ = led()
    live = {**LIVE, B.node: LiveNode(40, 12)}
    again = Incarnation(B.node, 40)
    leader.fetch(ask(again, 3), live, 0)
    proposal = proposed(leader, 0, live)
    assert proposal.registration.isr == {1: 11, 2: 40, 3: 13}
    assert proposal.joining == (again,)


def test_who_may_have_joined_holds_the_high_watermark_back() -> None:
    leader, log = led(isr=(A, B))
    leader.fetch(ask(B, 3), LIVE, 0)
    leader.fetch(ask(C, 3), LIVE, 0)
    proposed(leader)
    leader.proposal_ended()
    write(log)
    leader.fetch(ask(B, 4), LIVE, 0)
    assert leader.high_watermark == 3
    leader.fetch(ask(C, 4), LIVE, 0)
    assert leader.high_watermark == 4


def test_a_proposal_of_unknown_outcome_counts_until_the_partition_epoch_has_moved() -> None:
    leader, log = led(isr=(A, B))
    leader.fetch(ask(B, 3), LIVE, 0)
    leader.fetch(ask(C, 3), LIVE, 0)
    first = proposed(leader)
    assert leader.propose(LIVE, 0) is None, "one is under way"
    leader.proposal_ended()
    again = proposed(leader)
    assert again.partition_epoch == first.partition_epoch, "so at most one of them takes effect"
    leader.proposal_ended()
    write(log)
    leader.fetch(ask(B, 4), LIVE, 0)
    assert leader.high_watermark == 3
    leader.observe(with_isr(leader, (A, B)), 101)
    assert leader.high_watermark == 4


def test_proposals_that_none_hears_of_are_bounded_and_settled_by_writing_what_holds() -> None:
    leader, _ = led(isr=(A, B))
    seen = []
    for turn in range(3 * MAX_PENDING):
        live = {**LIVE, C.node: LiveNode(50 + turn, 1)}
        leader.fetch(ask(Incarnation(C.node, 50 + turn), 3), live, 0)
        seen.append(proposed(leader, 0, live).registration.isr)
        leader.proposal_ended()
    assert seen[-1] == leader.isr
    assert len({tuple(sorted(isr.items())) for isr in seen}) == MAX_PENDING + 1


def test_a_proposal_that_is_no_longer_wanted_is_settled_too() -> None:
    leader, log = led(isr=(A, B))
    leader.fetch(ask(C, 3), LIVE, 0)
    proposed(leader)
    leader.proposal_ended()
    without = {node: LIVE[node] for node in (1, 2)}
    write(log)
    assert proposed(leader, 0, without).registration.isr == leader.isr


def test_an_older_delta_changes_nothing() -> None:
    leader, _ = led()
    leader.observe(with_isr(leader, (A, B)), 102)
    leader.observe(with_isr(leader, (A, B, C)), 101)
    assert leader.isr == {1: 11, 2: 12}


# Deleted records


def test_records_are_deleted_when_every_in_sync_replica_has_deleted_them() -> None:
    leader, log = led()
    for follower in (B, C):
        leader.fetch(ask(follower, 3), LIVE, 0)
    log.delete_before(2)
    assert not leader.is_deleted(2)
    leader.fetch(ask(B, 3, start=2), LIVE, 0)
    assert (leader.is_deleted(2), leader.low_watermark()) == (False, 0)
    leader.fetch(ask(C, 3, start=2), LIVE, 0)
    assert (leader.is_deleted(2), leader.low_watermark()) == (True, 2)


def test_who_joins_later_has_deleted_them_as_well() -> None:
    leader, log = led(isr=(A, B))
    leader.fetch(ask(B, 3), LIVE, 0)
    log.delete_before(2)
    leader.fetch(ask(B, 3, start=2), LIVE, 0)
    assert leader.is_deleted(2)
    leader.fetch(ask(C, 3), LIVE, 0)
    assert leader.propose(LIVE, 0) is None
    leader.fetch(ask(C, 3, start=2), LIVE, 0)
    assert proposed(leader).joining == (C,)


def test_a_fetch_that_was_held_while_records_were_deleted_is_answered_with_an_error() -> None:
    leader, log = led(isr=(A,), min_isr=1)
    request = ask(B, 1)
    assert not leader.fetch(request, LIVE, 0).error_code
    log.delete_before(2)
    assert leader.answer(request).error_code is FetchError.OFFSET_OUT_OF_RANGE


def test_a_replica_of_a_reassignment_is_served_and_joins() -> None:
    log = SimLog()
    added = Incarnation(4, 14)
    live = {**LIVE, 4: LiveNode(14, 1)}
    leader = leads(log, registered=replace(registration(isr=(A, B)), adding=(4,)))
    leader.fetch(ask(added, 0), live, 0)
    assert proposed(leader, 0, live).joining == (added,)
