"""Plans in their compact form: the same partitions, the same bytes, in whichever form they are looked at."""

from __future__ import annotations

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from client.assignors import (
    CooperativeStickyAssignor,
    RangeAssignor,
    RoundRobinAssignor,
    StickyAssignor,
    Subscription,
)
from client.assignors.plan import Cut, Plan
from protocol.subscription import TopicPartition, assignment_user_data, decode_assignment
from tests.client.assignors.groups import clusters, groups
from tests.client.assignors.histories import claiming

OurOwn = RangeAssignor | RoundRobinAssignor | StickyAssignor | CooperativeStickyAssignor
OUR_OWN: list[OurOwn] = [RangeAssignor(), RoundRobinAssignor(), StickyAssignor(), CooperativeStickyAssignor()]


@pytest.mark.parametrize("assignor", OUR_OWN, ids=lambda assignor: assignor.name)
@given(cluster=clusters, group=groups, grown=st.integers(0, 5))
@example({"a": 3, "b": 2, "c": 5}, {"m0": Subscription(("a", "b", "c")), "m1": Subscription(("a", "b", "c"))}, 1)
@settings(deadline=None)
def test_what_is_sent_is_what_assign_returns(
    assignor: OurOwn,
    cluster: dict[str, int],
    group: dict[str, Subscription],
    grown: int,
) -> None:
    fresh = assignor.assign(cluster, group)
    settled = claiming(group, fresh, 1)
    for partitions, members in ((cluster, group), ({topic: n + grown for topic, n in cluster.items()}, settled)):
        shares, plan = assignor.assign(partitions, members), assignor.plan(partitions, members)
        assert {member: list(decode_assignment(blob)) for member, blob in plan.encoded().items()} == shares
        told = plan.encoded({"m0": b"told"})
        assert {member: assignment_user_data(blob) for member, blob in told.items()} == {
            member: b"told" if member == "m0" else b"" for member in shares
        }
        assert {member: list(decode_assignment(blob)) for member, blob in told.items()} == shares
        assert all(type(share) is list for share in shares.values())
        assert plan.partitions() == shares


def test_topics_of_a_cut_are_dealt_alike_and_in_order() -> None:
    cut = Cut(["b", "d"], range(5), [(1, slice(0, None, 2)), (0, slice(1, None, 2))])
    single = Cut(["c"], [1, 0], [(0, slice(0, 1)), (1, slice(1, 2))])
    plan = Plan(["m0", "m1", "m2"], [cut, single], [[TopicPartition("a", 7)], [], []])
    expected = {
        "m0": [("a", 7), ("b", 1), ("b", 3), ("c", 1), ("d", 1), ("d", 3)],
        "m1": [("b", 0), ("b", 2), ("b", 4), ("c", 0), ("d", 0), ("d", 2), ("d", 4)],
        "m2": [],
    }
    assert {member: list(decode_assignment(blob)) for member, blob in plan.encoded().items()} == expected
    assert plan.partitions() == expected


def test_a_plan_of_a_million_partitions_makes_none_of_them_for_those_who_only_send_it() -> None:
    topics = tuple(f"topic-{number:03}" for number in range(500))
    group = {f"member-{number:04}": Subscription(topics) for number in range(2_000)}
    for assignor in OUR_OWN:
        plan = assignor.plan(dict.fromkeys(topics, 2_000), group)
        assert not any(plan.loose)
        assert sum(len(cut.pieces) * len(cut.topics) for cut in plan.cuts) == 1_000_000
        assert len(plan.cuts) == 1


@pytest.mark.parametrize("assignor", OUR_OWN, ids=lambda assignor: assignor.name)
@given(cluster=clusters, group=groups, first=st.dictionaries(st.sampled_from("abcd"), st.integers(0, 12)))
@settings(deadline=None)
def test_it_tells_who_has_partitions_from_a_number_on(
    assignor: OurOwn, cluster: dict[str, int], group: dict[str, Subscription], first: dict[str, int]
) -> None:
    expected = {
        member: {topic: first[topic] for topic, number in share if number >= first.get(topic, number + 1)}
        for member, share in assignor.assign(cluster, group).items()
    }
    found = assignor.plan(cluster, group).reaching(first)
    assert found == {member: topics for member, topics in expected.items() if topics}
