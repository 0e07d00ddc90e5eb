"""What every plan must satisfy. What each assignor promises besides is in its own module."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest
from hypothesis import given
from hypothesis import strategies as st

from client.assignors import (
    Assignor,
    CooperativeStickyAssignor,
    RangeAssignor,
    RoundRobinAssignor,
    StickyAssignor,
    Subscription,
)
from protocol.subscription import TopicPartition
from tests.client.assignors.groups import clusters, groups, shown, subscribed

ASSIGNORS: list[Assignor] = [RangeAssignor(), RoundRobinAssignor(), StickyAssignor(), CooperativeStickyAssignor()]

_PLANS = """
from client.assignors import *
from protocol.subscription import TopicPartition
topics = {f"topic-{n}": n for n in range(9)}
members = {
    f"m{n}": Subscription(
        tuple(sorted(topics))[n % 3 :: 1 + n % 2],
        owned_partitions=(TopicPartition("topic-8", n), TopicPartition("topic-6", n // 2)),
        generation=n // 3,
    )
    for n in range(7)
}
for assignor in (RangeAssignor(), RoundRobinAssignor(), StickyAssignor(), CooperativeStickyAssignor()):
    print(assignor.name, assignor.assign(topics, members))
"""


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


@pytest.mark.parametrize("assignor", ASSIGNORS[:2], ids=lambda assignor: assignor.name)
def test_members_with_an_instance_id_come_first_whatever_their_member_id(assignor: Assignor) -> None:
    group = {
        "a": subscribed("t"),
        "z-new-id": Subscription(("t",), group_instance_id="one"),
        "b-new-id": Subscription(("t",), group_instance_id="two"),
    }
    assert shown(assignor.assign({"t": 3}, group)) == {"z-new-id": ["t-0"], "b-new-id": ["t-1"], "a": ["t-2"]}


def test_the_hash_seed_changes_nothing() -> None:
    def plans(seed: str) -> str:
        environment = {**os.environ, "PYTHONHASHSEED": seed}
        done = subprocess.run(
            [sys.executable, "-c", _PLANS], capture_output=True, text=True, timeout=60, env=environment, check=True
        )
        return done.stdout

    first = plans("1")
    assert "topic-8" in first
    assert all(plans(seed) == first for seed in ("2", "3"))


@pytest.mark.parametrize("assignor", ASSIGNORS, ids=lambda assignor: assignor.name)
def test_a_topic_named_twice_counts_once(assignor: Assignor) -> None:
    twice = {"m1": subscribed("t", "t"), "m2": subscribed("t")}
    once = {"m1": subscribed("t"), "m2": subscribed("t")}
    assert assignor.assign({"t": 5}, twice) == assignor.assign({"t": 5}, once)


@pytest.mark.parametrize("assignor", ASSIGNORS, ids=lambda assignor: assignor.name)
def test_partitions_are_of_the_public_type(assignor: Assignor) -> None:
    (partition,) = assignor.assign({"t": 1}, {"m": subscribed("t")})["m"]
    assert type(partition) is TopicPartition
    assert (partition.topic, partition.partition) == ("t", 0)
