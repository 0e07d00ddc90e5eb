"""Range and round robin: what every plan must satisfy, and worked examples."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from client.assignors import Assignor, RangeAssignor, RoundRobinAssignor, Subscription
from protocol.subscription import TopicPartition

ASSIGNORS: list[Assignor] = [RangeAssignor(), RoundRobinAssignor()]

topics = st.sampled_from(["a", "b", "c", "d", "nowhere"])
clusters = st.dictionaries(st.sampled_from(["a", "b", "c", "d"]), st.integers(0, 12))
subscriptions = st.builds(
    Subscription,
    topics=st.lists(topics, unique=True).map(tuple),
    group_instance_id=st.none() | st.text("xyz", min_size=1, max_size=2),
)
groups = st.dictionaries(st.text("mn0123", min_size=1, max_size=4), subscriptions, min_size=1, max_size=9)


def subscribed(*names: str) -> Subscription:
    return Subscription(names)


def shown(plan: dict[str, list[TopicPartition]]) -> dict[str, list[str]]:
    return {member: [f"{topic}-{partition}" for topic, partition in share] for member, share in plan.items()}


@pytest.mark.parametrize("assignor", ASSIGNORS, ids=lambda assignor: assignor.name)
class TestEveryPlan:
    @given(cluster=clusters, group=groups)
    def test_gives_each_partition_one_owner_who_subscribes(
        self, assignor: Assignor, cluster: dict[str, int], group: dict[str, Subscription]
    ) -> None:
        plan = assignor.assign(cluster, group)
        wanted = {topic for subscription in group.values() for topic in subscription.topics}
        everything = {
            TopicPartition(topic, n) for topic, count in cluster.items() if topic in wanted for n in range(count)
        }
        given_out = [tp for share in plan.values() for tp in share]
        assert set(plan) == set(group)
        assert len(given_out) == len(everything)
        assert set(given_out) == everything
        assert all(tp.topic in group[member].topics for member, share in plan.items() for tp in share)

    @given(cluster=clusters, group=groups)
    def test_depends_on_content_only(
        self, assignor: Assignor, cluster: dict[str, int], group: dict[str, Subscription]
    ) -> None:
        turned_cluster = dict(reversed(cluster.items()))
        turned_group = {
            member: Subscription(subscription.topics[::-1], group_instance_id=subscription.group_instance_id)
            for member, subscription in reversed(group.items())
        }
        assert assignor.assign(cluster, group) == assignor.assign(turned_cluster, turned_group)

    @given(cluster=clusters, names=st.lists(st.text("mn0123", min_size=1), unique=True, min_size=1, max_size=9))
    def test_of_one_topic_among_equals_differs_by_one_at_most(
        self, assignor: Assignor, cluster: dict[str, int], names: list[str]
    ) -> None:
        for topic in cluster:
            plan = assignor.assign(cluster, {name: subscribed(topic) for name in names})
            sizes = [len(share) for share in plan.values()]
            assert max(sizes) - min(sizes) <= 1


def test_range_gives_runs_and_the_extra_to_the_first() -> None:
    plan = RangeAssignor().assign({"t": 7}, {name: subscribed("t") for name in ("m1", "m2", "m3")})
    assert shown(plan) == {"m1": ["t-0", "t-1", "t-2"], "m2": ["t-3", "t-4"], "m3": ["t-5", "t-6"]}


def test_range_leaves_the_third_idle_with_topics_of_two_partitions() -> None:
    names = ("t0", "t1", "t2", "t3")
    plan = RangeAssignor().assign(dict.fromkeys(names, 2), {name: subscribed(*names) for name in ("m1", "m2", "m3")})
    assert shown(plan) == {"m1": [f"{t}-0" for t in names], "m2": [f"{t}-1" for t in names], "m3": []}


def test_range_gives_equal_topics_alike() -> None:
    plan = RangeAssignor().assign({"l": 5, "r": 5}, {name: subscribed("l", "r") for name in ("m1", "m2")})
    for share in plan.values():
        assert [tp.partition for tp in share if tp.topic == "l"] == [tp.partition for tp in share if tp.topic == "r"]


def test_round_robin_deals_across_topics_without_starting_over() -> None:
    plan = RoundRobinAssignor().assign({"a": 3, "b": 3}, {name: subscribed("a", "b") for name in ("m1", "m2")})
    assert shown(plan) == {"m1": ["a-0", "a-2", "b-1"], "m2": ["a-1", "b-0", "b-2"]}


def test_round_robin_is_lopsided_with_unequal_subscriptions() -> None:
    group = {"m1": subscribed("t0"), "m2": subscribed("t0", "t1"), "m3": subscribed("t0", "t1", "t2")}
    plan = RoundRobinAssignor().assign({"t0": 1, "t1": 2, "t2": 3}, group)
    assert shown(plan) == {"m1": ["t0-0"], "m2": ["t1-0"], "m3": ["t1-1", "t2-0", "t2-1", "t2-2"]}


@pytest.mark.parametrize("assignor", ASSIGNORS, ids=lambda assignor: assignor.name)
def test_members_with_an_instance_id_come_first_whatever_their_member_id(assignor: Assignor) -> None:
    group = {
        "a": subscribed("t"),
        "z-new-id": Subscription(("t",), group_instance_id="one"),
        "b-new-id": Subscription(("t",), group_instance_id="two"),
    }
    assert shown(assignor.assign({"t": 3}, group)) == {"z-new-id": ["t-0"], "b-new-id": ["t-1"], "a": ["t-2"]}
