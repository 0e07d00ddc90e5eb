"""The leader's part: what it withholds from a plan, and what it looks at afterwards."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as st

from client.assignors import CooperativeStickyAssignor, RangeAssignor, StickyAssignor
from client.consumer.leader_assignor import LeaderAssignor, is_cooperative, noted_as_new, withhold_what_is_held
from client.transport.metadata import Topology
from client.types.records import TopicPartition
from protocol.codec import pack
from protocol.consumer_protocol import encode_entries
from protocol.messages.cluster import PartitionMetadata, TopicMetadata
from protocol.messages.groups import JoinGroupMember
from protocol.subscription import (
    Subscription,
    assignment_user_data,
    decode_assignment,
    encode_assignment,
    encode_subscription,
)

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


def test_what_the_leader_adds_to_a_share_disturbs_no_member() -> None:
    blob = encode_assignment([TopicPartition("t", 1)], b"more")
    assert decode_assignment(blob) == (TopicPartition("t", 1),)
    assert assignment_user_data(blob) == b"more"
    assert assignment_user_data(b"") == b""


class Topics:
    """What a leader sees of its cluster."""

    def __init__(self) -> None:
        self.topology = Topology.unknown()

    def track(self, topics: Sequence[str]) -> None:
        pass

    def have(self, **partitions: int) -> None:
        topics = {
            name: TopicMetadata(
                0, name, name, False, tuple(PartitionMetadata(0, number, 0, 0, (0,), (0,)) for number in range(count))
            )
            for name, count in partitions.items()
        }
        self.topology = replace(self.topology, topics=topics, asked=frozenset({"t", "u"}))


async def told(assigner: LeaderAssignor, topics: Topics) -> dict[str, Mapping[str, int]]:
    """What the leader notes beside the share of each of two members."""
    blob = encode_subscription(Subscription(("t", "u")))
    members = [JoinGroupMember(name, None, blob) for name in ("a", "b")]
    plan = await assigner.assign(topics, "range", members, "a")  # type: ignore[arg-type]
    return {name: noted_as_new(share) for name, share in plan.items()}


async def test_members_are_told_which_partitions_of_their_share_have_appeared() -> None:
    topics, assigner = Topics(), LeaderAssignor("g", [RangeAssignor()])
    topics.have(t=2)
    assert await told(assigner, topics) == {"a": {}, "b": {}}
    topics.have(t=4)
    assert await told(assigner, topics) == {"a": {}, "b": {"t": 2}}
    topics.have(t=4, u=1)
    assert await told(assigner, topics) == {"a": {"u": 0}, "b": {"t": 2}}
    topics.have(u=1)
    await told(assigner, topics)
    topics.have(t=2)
    assert await told(assigner, topics) == {"a": {"t": 0}, "b": {"t": 0}}, "it was deleted and created anew"


async def test_a_leader_knows_what_it_saw_before_it_led() -> None:
    topics, assigner = Topics(), LeaderAssignor("g", [RangeAssignor()], lambda: {"t": 1})
    topics.have(t=2, u=2)
    assert await told(assigner, topics) == {"a": {}, "b": {"t": 1}}


def test_notes_of_others_are_passed_over() -> None:
    for note in (b"", b"more", pack({"t": 2}), pack({"new_from": {"t": "x"}}), pack({"new_from": 3}), pack([1])):
        assert noted_as_new(encode_assignment([TopicPartition("t", 1)], note)) == {}
    assert noted_as_new(b"") == {}


async def test_members_of_kafka_s_sticky_assignor_keep_what_they_had() -> None:
    """They give everything up before they join, and say what they had in their user data."""
    topics, assigner = Topics(), LeaderAssignor("g", [StickyAssignor()])
    topics.have(t=4)
    had = {"a": (0, 3), "b": (1, 2)}
    members = []
    for name, numbers in had.items():
        user_data = encode_entries({"t": numbers})
        user_data = bytes((0, 0, 0, 1)) + user_data + bytes((0, 0, 0, 7))
        members.append(JoinGroupMember(name, None, encode_subscription(Subscription(("t",), user_data))))
    plan = await assigner.assign(topics, "sticky", members, "a")  # type: ignore[arg-type]
    assert {name: tuple(number for _, number in decode_assignment(share)) for name, share in plan.items()} == had


async def test_user_data_of_an_unknown_assignor_is_passed_over() -> None:
    topics, assigner = Topics(), LeaderAssignor("g", [StickyAssignor()])
    topics.have(t=2)
    members = [
        JoinGroupMember(name, None, encode_subscription(Subscription(("t",), b"something else"))) for name in ("a", "b")
    ]
    plan = await assigner.assign(topics, "sticky", members, "a")  # type: ignore[arg-type]
    assert sorted(len(decode_assignment(share)) for share in plan.values()) == [1, 1]
