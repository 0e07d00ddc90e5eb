"""The controller's decisions about one partition."""

from __future__ import annotations

from dataclasses import replace

import pytest

from coordinator.controller import writes
from coordinator.controller.core import (
    PartitionUpdate,
    PartitionView,
    candidates,
    decide,
    elect_unclean,
    plan,
    prefer,
    with_minimum,
)
from coordinator.metadata.authority import Compare, Delete, Put
from coordinator.replication.partition import Incarnation, LiveNode, PartitionRegistration

ALL = {node: LiveNode(10 + node, 1) for node in (1, 2, 3, 4)}
LED = PartitionRegistration((1, 2, 3), Incarnation(1, 11), 5, {1: 11, 2: 12, 3: 13}, 2)


def alive(*nodes: int, **changes: LiveNode) -> dict[int, LiveNode]:
    """These nodes live."""
    return {node: ALL[node] for node in nodes} | {int(name[1:]): node for name, node in changes.items()}


def decided(
    known: PartitionRegistration, live: dict[int, LiveNode], target: tuple[int, ...] | None = None
) -> PartitionUpdate[str] | None:
    """What is to be written."""
    return decide("t", PartitionView(known, 77, target), live)


def after(
    known: PartitionRegistration, live: dict[int, LiveNode], target: tuple[int, ...] | None
) -> PartitionRegistration:
    """The partition when nothing is left to be written."""
    for _ in range(10):
        update = decided(known, live, target)
        if update is None:
            return known
        known, target = update.registration, None if update.ends_reassignment else target
    raise AssertionError("it never comes to an end")


def test_nothing_is_written_while_all_is_well() -> None:
    assert decided(LED, alive(1, 2, 3)) is None
    assert plan([("t", PartitionView(LED, 77))], alive(1, 2, 3)) == []


def test_the_first_eligible_replica_is_elected_in_an_epoch_of_its_own() -> None:
    update = decided(LED, alive(2, 3))
    assert update is not None
    assert update.registration.leader == update.elected == Incarnation(2, 12)
    assert (update.registration.leader_epoch, update.partition_epoch) == (6, 77)
    assert update.registration.isr == {2: 12, 3: 13}, "the dead one leaves, two are the minimum"


def test_dead_members_stay_at_the_minimum() -> None:
    update = decided(LED, alive(3))
    assert update is not None
    assert update.registration.isr == {2: 12, 3: 13}


def test_a_leader_that_was_started_again_is_elected_anew_and_not_taken_on() -> None:
    update = decided(LED, alive(2, 3, n1=LiveNode(40, 1)))
    assert update is not None
    assert (update.registration.leader, update.registration.leader_epoch) == (Incarnation(1, 40), 6)
    assert update.registration.isr == {1: 40, 2: 12, 3: 13}


def test_who_lost_something_since_it_joined_is_not_elected() -> None:
    update = decided(LED, alive(3, n2=LiveNode(50, 50)))
    assert update is not None
    assert update.registration.leader == Incarnation(3, 13)


def test_who_is_not_in_sync_is_not_elected() -> None:
    known = replace(LED, isr={1: 11, 3: 13})
    update = decided(known, alive(2))
    assert update is not None
    assert update.registration == replace(known, leader=None)
    assert update.elected is None
    assert decided(update.registration, alive(2)) is None, "and it is written once"


def test_a_single_replica_leads_whatever_it_lost() -> None:
    alone = PartitionRegistration((1,), None, 5, {1: 11}, 1)
    update = decided(alone, alive(n1=LiveNode(60, 60)))
    assert update is not None
    assert update.registration.isr == {1: 60}


def test_a_leader_that_stops_hands_over_to_one_that_does_not() -> None:
    stops = alive(2, 3, n1=ALL[1]._replace(accepting=False))
    update = decided(LED, stops)
    assert update is not None
    assert update.registration.leader == Incarnation(2, 12)
    assert after(LED, stops, None).isr == {2: 12, 3: 13}, "then it leaves the in-sync replicas"


def test_when_all_stop_the_leader_stays() -> None:
    stopping = {node: known._replace(accepting=False) for node, known in alive(1, 2, 3).items()}
    assert after(LED, stopping, None).leader == LED.leader


@pytest.mark.parametrize(
    ("ends", "leader"), [({1: (3, 9), 2: (4, 2)}, 2), ({1: (4, 9), 2: (4, 2)}, 1), ({1: (4, 2), 2: (4, 2)}, 1)]
)
def test_an_unclean_election_takes_the_largest_log(ends: dict[int, tuple[int, int]], leader: int) -> None:
    elected = elect_unclean(replace(LED, leader=None, isr={3: 13}), alive(1, 2), ends)
    assert elected is not None
    assert elected.leader == Incarnation(leader, ALL[leader].broker_epoch)
    assert elected.isr == {leader: ALL[leader].broker_epoch}
    assert elect_unclean(LED, {}, ends) is None


# Reassignments


def test_replicas_are_added_and_nothing_goes_before_they_are_in_sync() -> None:
    update = decided(LED, alive(1, 2, 3, 4), (2, 3, 4))
    assert update is not None
    assert update.registration == replace(LED, adding=(4,))
    assert decided(update.registration, alive(1, 2, 3, 4), (2, 3, 4)) is None


def test_when_they_are_in_sync_first_the_leadership_goes_and_then_the_replica() -> None:
    ready = replace(LED, adding=(4,), isr={**LED.isr, 4: 14})
    live = alive(1, 2, 3, 4)
    update = decided(ready, live, (2, 3, 4))
    assert update is not None
    assert (update.registration.leader, update.registration.replicas) == (Incarnation(2, 12), (1, 2, 3))
    done = decided(update.registration, live, (2, 3, 4))
    assert done is not None
    assert done.ends_reassignment
    assert (done.registration.replicas, done.registration.adding) == ((2, 3, 4), ())
    assert done.registration.isr == {2: 12, 3: 13, 4: 14}
    assert done.registration.leader_epoch == update.registration.leader_epoch + 1, "who goes is not believed any more"


def test_another_target_keeps_who_is_in_sync_until_the_end() -> None:
    """It would otherwise remove its log, which counts."""
    ready = replace(LED, replicas=(1, 2), adding=(3,), isr={1: 11, 3: 13})
    update = decided(ready, alive(1, 2, 3, 4), (1, 4))
    assert update is not None
    assert update.registration.adding == (4, 3)


def test_a_reassignment_that_is_cancelled_leaves_the_replicas_of_before() -> None:
    known = replace(LED, replicas=(1, 2), adding=(3,), isr={1: 11, 2: 12, 3: 13}, leader=Incarnation(3, 13))
    done = after(known, alive(1, 2, 3), None)
    assert (done.replicas, done.adding, done.isr) == ((1, 2), (), {1: 11, 2: 12})
    assert done.leader == Incarnation(1, 11)


def test_what_would_leave_too_few_in_sync_waits() -> None:
    known = replace(LED, replicas=(1, 2), adding=(3,), isr={1: 11, 3: 13})
    assert decided(known, alive(1, 2, 3)) is None


def test_a_reassignment_to_what_there_is_ends() -> None:
    update = decided(LED, alive(1, 2, 3), (1, 2, 3))
    assert update is not None
    assert update.ends_reassignment
    assert update.registration == LED


def test_candidates_come_in_the_order_of_the_replicas_those_that_stop_last() -> None:
    assert candidates(LED, alive(2, 3, n1=ALL[1]._replace(accepting=False))) == [2, 3, 1]


# How it is written


def test_a_write_holds_while_the_controller_the_partition_and_the_new_leader_are_as_they_were() -> None:
    update = decided(LED, alive(2, 3))
    assert update is not None
    fence = Compare("controller", "create", 3)
    assert writes.conditions(update, "part/t", "live/{}".format, fence) == [
        fence,
        Compare("part/t", "mod", 77),
        Compare("live/2", "create", 12),
    ]
    ended = update._replace(ends_reassignment=True)
    assert writes.operations(ended, "part/t", "reassign/t", repr) == [
        Put("part/t", repr(update.registration)),
        Delete("reassign/t"),
    ]


def test_the_first_of_the_replicas_leads_again_where_it_may() -> None:
    led = replace(LED, leader=Incarnation(2, 12))
    update = prefer("t", PartitionView(led, 7), alive(1, 2, 3))
    assert update is not None
    assert (update.registration.leader, update.registration.leader_epoch) == (Incarnation(1, 11), 6)
    assert (update.elected, update.partition_epoch) == (Incarnation(1, 11), 7)
    assert prefer("t", PartitionView(LED, 7), alive(1, 2, 3)) is None, "it does lead"
    assert prefer("t", PartitionView(led, 7), alive(2, 3)) is None, "it is gone"
    assert prefer("t", PartitionView(led, 7), alive(1, 2, 3, n1=LiveNode(11, 1, accepting=False))) is None, "it stops"
    assert prefer("t", PartitionView(led, 7), alive(1, 2, 3, n1=LiveNode(15, 15))) is None, "it has lost what it had"
    assert prefer("t", PartitionView(replace(led, isr={2: 12}), 7), alive(1, 2, 3)) is None, "it is not in sync"
    assert prefer("t", PartitionView(led, 7, (2, 3)), alive(1, 2, 3)) is None, "it is about to go"
    assert prefer("t", PartitionView(led, 7), alive(1, 3)) is None, "the leader is gone: that comes first"


def test_a_higher_minimum_holds_once_so_many_are_in_sync_and_a_lower_one_at_once() -> None:
    view = PartitionView(LED, 7)
    for minimum in (1, 3):
        update = with_minimum("t", view, minimum)
        assert update is not None
        assert (update.registration.min_isr, update.elected) == (minimum, None)
    assert with_minimum("t", view, 2) is None
    assert with_minimum("t", PartitionView(replace(LED, isr={1: 11, 2: 12}), 7), 3) is None
