"""Round robin: one circle over the members that never starts over."""

from __future__ import annotations

from itertools import cycle

from hypothesis import given
from hypothesis import strategies as st

from client.assignors import RoundRobinAssignor, Subscription
from client.assignors.assignor import ordered_members
from protocol.subscription import TopicPartition
from tests.client.assignors.groups import clusters, groups, shown, subscribed


def spelled_out(cluster: dict[str, int], group: dict[str, Subscription]) -> dict[str, list[TopicPartition]]:
    """The rule word by word: partition after partition, ask member after member."""
    plan: dict[str, list[TopicPartition]] = {member: [] for member in group}
    turn = cycle(ordered_members(group))
    for topic in sorted(cluster):
        if any(topic in subscription.topics for subscription in group.values()):
            for partition in range(cluster[topic]):
                member = next(member for member in turn if topic in group[member].topics)
                plan[member].append(TopicPartition(topic, partition))
    return plan


@given(cluster=clusters, group=groups)
def test_it_is_one_circle_that_passes_over_those_not_subscribed(
    cluster: dict[str, int], group: dict[str, Subscription]
) -> None:
    assert RoundRobinAssignor().assign(cluster, group) == spelled_out(cluster, group)


@given(cluster=clusters, names=st.lists(st.text("mn0123", min_size=1), unique=True, min_size=1, max_size=9))
def test_equals_differ_by_one_over_all_topics(cluster: dict[str, int], names: list[str]) -> None:
    plan = RoundRobinAssignor().assign(cluster, {name: subscribed(*cluster) for name in names})
    sizes = [len(share) for share in plan.values()]
    assert max(sizes) - min(sizes) <= 1


def test_it_deals_across_topics_without_starting_over() -> None:
    plan = RoundRobinAssignor().assign({"a": 3, "b": 3}, {name: subscribed("a", "b") for name in ("m1", "m2")})
    assert shown(plan) == {"m1": ["a-0", "a-2", "b-1"], "m2": ["a-1", "b-0", "b-2"]}


def test_unequal_subscriptions_give_the_last_member_four_of_six() -> None:
    group = {"m1": subscribed("t0"), "m2": subscribed("t0", "t1"), "m3": subscribed("t0", "t1", "t2")}
    plan = RoundRobinAssignor().assign({"t0": 1, "t1": 2, "t2": 3}, group)
    assert shown(plan) == {"m1": ["t0-0"], "m2": ["t1-0"], "m3": ["t1-1", "t2-0", "t2-1", "t2-2"]}


def test_a_topic_of_one_subscriber_does_not_cost_the_others_their_turn() -> None:
    group = {"m1": subscribed("a", "c"), "m2": subscribed("a", "b", "c"), "m3": subscribed("a", "c")}
    plan = RoundRobinAssignor().assign({"a": 1, "b": 2, "c": 3}, group)
    assert shown(plan) == {"m1": ["a-0", "c-1"], "m2": ["b-0", "b-1", "c-2"], "m3": ["c-0"]}


def test_a_topic_with_few_subscribers_does_not_ask_all_members_for_each_partition() -> None:
    asked = 0

    class Counted(str):
        __slots__ = ()

        def __eq__(self, other: object) -> bool:
            nonlocal asked
            asked += 1
            return str.__eq__(self, other)

        __hash__ = str.__hash__

    group = {f"m{number:04}": Subscription((Counted("wide"),)) for number in range(1000)}
    group["m0500"] = Subscription((Counted("wide"), Counted("narrow")))
    plan = RoundRobinAssignor().assign({"wide": 1000, "narrow": 1000}, group)
    assert len(plan["m0500"]) == 1001
    assert asked < 10_000  # a thousand partitions times a thousand members would be a million
