"""Sticky plans with racks: as balanced as without, as near as can be, and no more moves than that takes."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from itertools import product

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from client.assignors import CooperativeStickyAssignor, RoundRobinAssignor, StickyAssignor, Subscription
from client.assignors.assignor import Racks
from protocol.subscription import TopicPartition
from tests.client.assignors.groups import racks
from tests.client.assignors.histories import TOPICS, Event, Group, claiming, histories
from tests.client.assignors.oracles import Plan, check_valid, kept

STICKY = StickyAssignor()
placements = st.dictionaries(
    st.builds(TopicPartition, st.sampled_from(TOPICS), st.integers(0, 9)), st.frozensets(racks, max_size=3)
)


def near_in(members: Mapping[str, Subscription], placed: Racks, plan: Plan) -> int:
    """Partitions that have a replica in their owner's rack."""
    return sum(members[member].rack in placed.get(tp, ()) for member, share in plan.items() for tp in share)


def counted(members: Mapping[str, Subscription], plan: Plan) -> dict[str, dict[frozenset[str], int]]:
    """How many partitions each member gets of topics that have the same subscribers."""
    subscribers = {topic: frozenset(m for m, each in members.items() if topic in each.topics) for topic in TOPICS}
    counts: dict[str, dict[frozenset[str], int]] = {member: {} for member in plan}
    for member, share in plan.items():
        for topic, _ in share:
            counts[member][subscribers[topic]] = counts[member].get(subscribers[topic], 0) + 1
    return counts


def located(group: Group, of_members: Mapping[str, str]) -> None:
    group.members = {member: replace(each, rack=of_members.get(member)) for member, each in group.members.items()}


@given(
    history=histories(), placed=placements, of_members=st.dictionaries(st.sampled_from(["m1", "m2", "m3", "m4"]), racks)
)
@settings(deadline=None)
def test_members_get_as_many_as_without_racks_and_nothing_moves_twice(
    history: list[list[Event]], placed: Racks, of_members: dict[str, str]
) -> None:
    group = Group()
    for events in history:
        for event in events:
            group.happen(event)
        located(group, of_members)
        plain = STICKY.assign(group.partitions, group.members)
        plan = STICKY.assign(group.partitions, group.members, placed)
        check_valid(group.partitions, group.members, plan)
        assert counted(group.members, plan) == counted(group.members, plain)
        assert near_in(group.members, placed, plan) >= near_in(group.members, placed, plain)
        group.generation += 1
        group.members = claiming(group.members, plan, group.generation)
        assert STICKY.assign(group.partitions, group.members, placed) == plan


def most_near(members: Mapping[str, Subscription], partitions: int, placed: Racks, sizes: Mapping[str, int]) -> int:
    """The most partitions of topic "a" near to their owners in any plan that gives so many to each. All are tried."""
    order = sorted(members)
    return max(
        near_in(
            members, placed, {m: [TopicPartition("a", n) for n, own in enumerate(owners) if own == m] for m in order}
        )
        for owners in product(order, repeat=partitions)
        if all(owners.count(member) == sizes[member] for member in order)
    )


@given(
    owners=st.lists(st.sampled_from(["m0", "m1", "m2", "m3", "-"]), min_size=1, max_size=6),
    of_members=st.lists(st.none() | racks, min_size=2, max_size=4),
    near=st.lists(st.frozensets(racks, max_size=3), min_size=6, max_size=6),
)
@settings(deadline=None, max_examples=300)
def test_as_many_are_near_as_can_be(
    owners: list[str], of_members: list[str | None], near: list[frozenset[str]]
) -> None:
    members = {
        f"m{number}": Subscription(
            ("a",),
            rack=rack,
            owned_partitions=tuple(TopicPartition("a", n) for n, owner in enumerate(owners) if owner == f"m{number}"),
            generation=1,
        )
        for number, rack in enumerate(of_members)
    }
    placed = {TopicPartition("a", number): each for number, each in enumerate(near)}
    plan = STICKY.assign({"a": len(owners)}, members, placed)
    sizes = {member: len(share) for member, share in plan.items()}
    assert near_in(members, placed, plan) == most_near(members, len(owners), placed, sizes)


def test_what_is_near_stays_and_what_is_far_moves_once() -> None:
    # Three zones, each partition in two of them; before, members had no zones.
    zones = ("a", "b", "c")
    placed = {TopicPartition("t", n): frozenset((zones[n % 3], zones[(n + 1) % 3])) for n in range(30)}
    members = {f"m{n}": Subscription(("t",), rack=zones[n]) for n in range(3)}
    before = claiming(members, STICKY.assign({"t": 30}, members), 1)
    plan = STICKY.assign({"t": 30}, before, placed)
    assert [len(share) for share in plan.values()] == [10, 10, 10]
    assert near_in(before, placed, plan) == 30
    was_near = near_in(before, placed, {member: list(each.owned_partitions) for member, each in before.items()})
    assert kept(before, plan) >= was_near - 10
    after = claiming(before, plan, 2)
    assert STICKY.assign({"t": 30}, after, placed) == plan


def test_room_is_made_through_a_third_rack() -> None:
    # Partition 0 is in a alone, whose only member holds 1, which is in a and b; b's member holds 2, which is in b and c.
    placed = {
        TopicPartition("t", 0): frozenset("a"),
        TopicPartition("t", 1): frozenset("ab"),
        TopicPartition("t", 2): frozenset("bc"),
    }
    members = {
        "m0": Subscription(("t",), rack="a", owned_partitions=(TopicPartition("t", 1),), generation=1),
        "m1": Subscription(("t",), rack="b", owned_partitions=(TopicPartition("t", 2),), generation=1),
        "m2": Subscription(("t",), rack="c", generation=1),
    }
    plan = STICKY.assign({"t": 3}, members, placed)
    assert plan == {f"m{n}": [TopicPartition("t", n)] for n in range(3)}


@given(
    history=histories(), placed=placements, of_members=st.dictionaries(st.sampled_from(["m1", "m2", "m3", "m4"]), racks)
)
@settings(deadline=None)
def test_the_cooperative_form_withholds_what_moves_for_being_near(
    history: list[list[Event]], placed: Racks, of_members: dict[str, str]
) -> None:
    group, cooperative = Group(), CooperativeStickyAssignor()
    for events in history:
        for event in events:
            group.happen(event)
        located(group, of_members)
        for rounds in range(1, 5):
            held = {tp: member for member, each in group.members.items() for tp in each.owned_partitions}
            plan = cooperative.assign(group.partitions, group.members, placed)
            assert all(held.get(tp, member) == member for member, share in plan.items() for tp in share)
            settled = claiming(group.members, plan, rounds)
            if all(set(each.owned_partitions) <= set(plan[member]) for member, each in group.members.items()):
                break
            group.members = settled
        check_valid(group.partitions, group.members, plan)
        group.members = settled


@pytest.mark.parametrize("known", [{}, {TopicPartition("t", n): frozenset({"east"}) for n in range(4)}])
def test_racks_that_tell_nothing_apart_change_nothing(known: Racks) -> None:
    members = {f"m{n}": Subscription(("t",), rack=rack) for n, rack in enumerate(["east", "west", None])}
    for assignor in (STICKY, CooperativeStickyAssignor()):
        assert assignor.assign({"t": 4}, members, known) == assignor.assign({"t": 4}, members)
    plan = RoundRobinAssignor().plan({"t": 4}, members, known)
    assert plan.partitions() == RoundRobinAssignor().assign({"t": 4}, members)
