"""The leader's part: what it withholds from a plan, and what it looks at afterwards."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from client.assignors import CooperativeStickyAssignor, RangeAssignor, StickyAssignor
from client.consumer.assigning import is_cooperative, withhold_what_is_held
from client.records import TopicPartition
from protocol.subscription import Subscription, assignment_user_data, decode_assignment, encode_assignment

MEMBERS = ("a", "b", "c")
partitions = st.integers(0, 7).map(lambda number: TopicPartition("t", number))
deals = st.dictionaries(partitions, st.sampled_from(MEMBERS))


def shares(owners: dict[TopicPartition, str]) -> dict[str, list[TopicPartition]]:
    return {member: sorted(tp for tp, owner in owners.items() if owner == member) for member in MEMBERS}


def claims(owners: dict[TopicPartition, str]) -> dict[str, Subscription]:
    held = shares(owners)
    return {member: Subscription(("t",), owned_partitions=tuple(held[member]), generation=4) for member in MEMBERS}


@given(held=deals, planned=deals)
def test_nothing_goes_to_one_while_another_holds_it_and_nothing_else_is_touched(
    held: dict[TopicPartition, str], planned: dict[TopicPartition, str]
) -> None:
    left = withhold_what_is_held(shares(planned), claims(held))
    expected = {tp: owner for tp, owner in planned.items() if held.get(tp, owner) == owner}
    assert {member: sorted(share) for member, share in left.items()} == shares(expected)


@given(held=deals, planned=deals)
def test_once_given_up_the_plan_holds_whole(
    held: dict[TopicPartition, str], planned: dict[TopicPartition, str]
) -> None:
    left = withhold_what_is_held(shares(planned), claims(held))
    kept = {tp: member for member, share in left.items() for tp in share if held.get(tp) == member}
    assert withhold_what_is_held(shares(planned), claims(kept)) == shares(planned)


def test_which_assignors_are_cooperative() -> None:
    assert [is_cooperative(each()) for each in (RangeAssignor, StickyAssignor, CooperativeStickyAssignor)] == [
        False,
        False,
        True,
    ]


def test_what_the_leader_adds_to_a_share_disturbs_nobody() -> None:
    blob = encode_assignment([TopicPartition("t", 1)], b"more")
    assert decode_assignment(blob) == (TopicPartition("t", 1),)
    assert assignment_user_data(blob) == b"more"
    assert assignment_user_data(b"") == b""
