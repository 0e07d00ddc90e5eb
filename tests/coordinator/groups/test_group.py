"""The parts of a group by themselves: states, election of leader and protocol, generations, causes, bounds."""

from __future__ import annotations

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from coordinator.groups.config import GroupConfig
from coordinator.groups.core import later_generation
from coordinator.groups.group import (
    MAX_CAUSES,
    MAX_DEPARTED,
    MAX_GENERATION,
    Causes,
    Group,
    Member,
    MembersPending,
    clipped,
    listed,
    with_reason,
)
from coordinator.groups.rebalance_counts import RebalanceCounts
from coordinator.groups.state import TRANSITIONS, GroupState
from protocol.messages.groups import JoinGroupProtocol


def member(member_id: str, *protocols: str) -> Member:
    """A member that offers these protocols."""
    offered = tuple(JoinGroupProtocol(name, name.encode()) for name in protocols)
    return Member("g", member_id, member_id, "host", 10_000, 60_000, offered)


@pytest.mark.parametrize(("source", "target"), list(itertools.product(GroupState, GroupState)))
def test_a_group_moves_along_the_table_only(source: GroupState, target: GroupState) -> None:
    group = Group("g", {}, MembersPending(), RebalanceCounts())
    group.state = source
    if target in TRANSITIONS[source]:
        group.transition(target)
        assert group.state is target
    else:
        with pytest.raises(AssertionError, match=f"{source.value} to {target.value}"):
            group.transition(target)


def test_every_state_can_be_reached_and_only_dead_is_final() -> None:
    assert set(TRANSITIONS) == set(GroupState)
    assert {state for state, targets in TRANSITIONS.items() if not targets} == {GroupState.DEAD}
    assert set().union(*TRANSITIONS.values()) == set(GroupState)


@pytest.mark.parametrize(
    ("generation", "following"), [(0, 1), (1, 2), (MAX_GENERATION - 1, MAX_GENERATION), (MAX_GENERATION, 1)]
)
def test_generations_count_up_and_wrap_to_one(generation: int, following: int) -> None:
    group = Group("g", {}, MembersPending(), RebalanceCounts())
    group.handed_out = generation
    assert group.next_generation() == following


@pytest.mark.parametrize(
    ("one", "other", "later"),
    [(0, 5, 5), (5, 0, 5), (5, 5, 5), (4, 5, 5), (5, 4, 5), (MAX_GENERATION, 1, 1), (1, MAX_GENERATION, 1), (0, 0, 0)],
)
def test_a_generation_after_the_wrap_is_the_later_one(one: int, other: int, later: int) -> None:
    assert later_generation(one, other) == later


def test_the_leadership_goes_to_the_member_that_joined_first_of_the_others() -> None:
    group = Group("g", {}, MembersPending(), RebalanceCounts())
    members = [member(name, "range") for name in ("c", "a", "b")]
    for one in members:
        group.add(one)
    leaders = []
    for one in members:
        leaders.append(group.leader)
        group.remove(one)
    assert leaders == ["c", "a", "b"]
    assert group.leader is None


@pytest.mark.parametrize(
    ("offers", "elected"),
    [
        ([["range"]], "range"),
        ([["range", "sticky"], ["sticky", "range"]], "range"),
        ([["sticky", "range"], ["range", "sticky"]], "sticky"),
        ([["range", "sticky"], ["sticky", "range"], ["sticky", "range"]], "sticky"),
        ([["mine", "range"], ["yours", "range"]], "range"),
        ([["a", "b", "c"], ["b", "c", "a"], ["c", "a", "b"]], "a"),
    ],
)
def test_the_protocol_with_most_votes_wins_and_the_leader_breaks_ties(offers: list[list[str]], elected: str) -> None:
    group = Group("g", {}, MembersPending(), RebalanceCounts())
    for index, protocols in enumerate(offers):
        group.add(member(str(index), *protocols))
    assert group.elect_protocol() == elected


OFFERS = st.lists(st.sampled_from(["a", "b", "c", "d"]), min_size=1, max_size=4, unique=True)


@given(st.lists(st.tuples(st.integers(0, 5), OFFERS, st.booleans()), max_size=30))
def test_the_counters_agree_with_the_members(steps: list[tuple[int, list[str], bool]]) -> None:
    group = Group("g", {}, MembersPending(), RebalanceCounts())
    for index, protocols, leaves in steps:
        known = group.members.get(str(index))
        offered = member(str(index), *protocols)
        if known is None:
            if group.others_support(offered.protocols, None):
                group.add(offered)
        elif leaves:
            group.remove(known)
        elif group.others_support(offered.protocols, known):
            group.set_protocols(known, offered.protocols)
        names = [{protocol.name for protocol in one.protocols} for one in group.members.values()]
        if names:
            assert set(group.protocols_of_all()) == set.intersection(*names)
            assert group.elect_protocol() in set.intersection(*names)
        assert group.metadata_bytes == sum(one.metadata_bytes for one in group.members.values())


def test_why_members_went_is_remembered_for_the_last_of_them() -> None:
    group = Group("g", {}, MembersPending(), RebalanceCounts())
    for index in range(MAX_DEPARTED + 10):
        group.remember_departed(str(index), "left")
    assert len(group.departed) == MAX_DEPARTED
    assert str(MAX_DEPARTED + 9) in group.departed
    assert "9" not in group.departed


def test_causes_are_named_up_to_a_bound_and_then_counted() -> None:
    causes = Causes()
    for index in range(MAX_CAUSES):
        causes.add(f"cause {index}")
    assert causes.text() == "cause 0; cause 1; cause 2; cause 3; cause 4"
    causes.add("one more")
    causes.add("another")
    assert causes.text() == "cause 0; cause 1; cause 2; cause 3; cause 4; and 2 more"


def test_sentences_are_bounded() -> None:
    assert clipped("x" * 200) == "x" * 117 + "..."
    assert clipped("x" * 120) == "x" * 120
    assert clipped("one\nline \x1b[31m, ünïcode") == r"one\nline \x1b[31m, ünïcode"
    assert with_reason("A left", "  shutting\n down ", 255) == "A left: shutting down"
    assert with_reason("A left", " ", 255) == "A left"
    assert with_reason("A left", "x" * 300, 10) == "A left: xxxxxxx..."
    many = [member(f"m{index}", "range") for index in range(7)]
    assert listed(many) == "members m0, m1, m2, m3, m4 and 2 more"
    assert listed(many[:1]) == "member m0"


@pytest.mark.parametrize(
    ("bounds", "message"),
    [
        ({"min_session_timeout_ms": 0}, "min_session_timeout_ms is 0, but it must be at least 1"),
        ({"max_group_id_bytes": -5}, "max_group_id_bytes is -5"),
        ({"min_session_timeout_ms": 10, "max_session_timeout_ms": 9}, "min_session_timeout_ms 10 is above"),
    ],
)
def test_a_configuration_that_no_client_could_meet_is_refused(bounds: dict[str, int], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        GroupConfig(**bounds)
