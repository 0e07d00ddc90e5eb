"""Range: runs of neighbouring partitions, co-partitioned topics alike, near racks first."""

from __future__ import annotations

from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from client.assignors import RangeAssignor, Subscription
from client.assignors.assignor import ordered_members
from protocol.subscription import TopicPartition
from tests.client.assignors.groups import clusters, groups, racks, shown, subscribed

Racks = dict[TopicPartition, frozenset[str]]

placements = st.dictionaries(
    st.builds(TopicPartition, st.sampled_from("abcd"), st.integers(0, 11)), st.frozensets(racks, max_size=3)
)


def spelled_out(cluster: dict[str, int], group: dict[str, Subscription]) -> dict[str, list[TopicPartition]]:
    """The rule word by word: n div m each, the first n mod m one more, one after the other."""
    plan: dict[str, list[TopicPartition]] = {member: [] for member in group}
    for topic, count in sorted(cluster.items()):
        subscribers = [member for member in ordered_members(group) if topic in group[member].topics]
        left = [TopicPartition(topic, partition) for partition in range(count)]
        for number, member in enumerate(subscribers):
            size = count // len(subscribers) + (number < count % len(subscribers))
            plan[member] += left[:size]
            del left[:size]
    return plan


def by_topic(plan: dict[str, list[TopicPartition]]) -> dict[tuple[str, str], list[int]]:
    """Partition numbers by member and topic."""
    found: dict[tuple[str, str], list[int]] = {}
    for member, share in plan.items():
        for topic, partition in share:
            found.setdefault((member, topic), []).append(partition)
    return found


class TestWithoutRacks:
    @given(cluster=clusters, group=groups)
    def test_each_topic_is_cut_into_runs(self, cluster: dict[str, int], group: dict[str, Subscription]) -> None:
        assert RangeAssignor().assign(cluster, group) == spelled_out(cluster, group)

    def test_seven_over_three_are_three_two_two(self) -> None:
        plan = RangeAssignor().assign({"t": 7}, {name: subscribed("t") for name in ("m1", "m2", "m3")})
        assert shown(plan) == {"m1": ["t-0", "t-1", "t-2"], "m2": ["t-3", "t-4"], "m3": ["t-5", "t-6"]}

    def test_four_topics_of_two_leave_the_third_idle(self) -> None:
        names = ("t0", "t1", "t2", "t3")
        group = {name: subscribed(*names) for name in ("m1", "m2", "m3")}
        plan = RangeAssignor().assign(dict.fromkeys(names, 2), group)
        assert shown(plan) == {"m1": [f"{t}-0" for t in names], "m2": [f"{t}-1" for t in names], "m3": []}

    @given(count=st.integers(1, 20), names=st.lists(st.text("mn01", min_size=1), unique=True, min_size=1, max_size=9))
    def test_topics_of_equal_size_are_cut_alike(self, count: int, names: list[str]) -> None:
        plan = RangeAssignor().assign({"l": count, "r": count}, {name: subscribed("l", "r") for name in names})
        cut = by_topic(plan)
        assert all(cut.get((name, "l")) == cut.get((name, "r")) for name in names)


class TestWithRacks:
    @given(cluster=clusters, group=groups, placed=placements)
    def test_everything_has_one_owner_who_subscribes_and_shares_differ_by_one(
        self, cluster: dict[str, int], group: dict[str, Subscription], placed: Racks
    ) -> None:
        plan = RangeAssignor().assign(cluster, group, placed)
        plain = RangeAssignor().assign(cluster, group)
        assert Counter(tp for share in plan.values() for tp in share) == Counter(
            tp for share in plain.values() for tp in share
        )
        cut, plain_cut = by_topic(plan), by_topic(plain)
        for topic in cluster:
            subscribers = [member for member in group if topic in group[member].topics]
            sizes = sorted(len(cut.get((member, topic), [])) for member in subscribers)
            assert sizes == sorted(len(plain_cut.get((member, topic), [])) for member in subscribers)
        assert all(numbers == sorted(numbers) for numbers in cut.values())
        assert not any(member for member, topic in cut if topic not in group[member].topics)

    @given(cluster=clusters, group=groups, placed=placements)
    def test_a_partition_is_far_from_its_owner_only_if_its_racks_are_full(
        self, cluster: dict[str, int], group: dict[str, Subscription], placed: Racks
    ) -> None:
        """One topic alone. Full means: at the quota, of which only the extra partition may be missing."""
        for topic, count in cluster.items():
            members = {name: each for name, each in group.items() if topic in each.topics}
            if not members:
                continue
            plan = RangeAssignor().assign({topic: count}, members, placed)
            for name, share in plan.items():
                for tp in share:
                    near = placed.get(tp, frozenset())
                    local = [other for other, each in members.items() if each.rack in near]
                    assert name in local or all(len(plan[other]) >= count // len(members) for other in local)

    @given(cluster=clusters, group=groups, near=st.frozensets(racks), count=st.integers(0, 12), placed=placements)
    def test_the_plan_is_the_plain_one_when_racks_tell_nothing_apart(
        self, cluster: dict[str, int], group: dict[str, Subscription], near: frozenset[str], count: int, placed: Racks
    ) -> None:
        everywhere = {TopicPartition(topic, n): near for topic, size in cluster.items() for n in range(size)}
        homeless = {
            name: Subscription(each.topics, group_instance_id=each.group_instance_id) for name, each in group.items()
        }
        elsewhere = {tp: frozenset({"moon"}) if where else where for tp, where in placed.items()}
        plain = RangeAssignor().assign(cluster, group)
        assert RangeAssignor().assign(cluster, group, everywhere) == plain
        assert RangeAssignor().assign(cluster, homeless, placed) == plain
        assert RangeAssignor().assign(cluster, group, elsewhere) == plain

    @given(count=st.integers(1, 12), group=groups, placed=placements)
    def test_co_partitioned_topics_are_cut_alike(
        self, count: int, group: dict[str, Subscription], placed: Racks
    ) -> None:
        joined = {name: Subscription(("a", "b"), rack=each.rack) for name, each in group.items()}
        cut = by_topic(RangeAssignor().assign({"a": count, "b": count}, joined, placed))
        assert all(cut.get((name, "a")) == cut.get((name, "b")) for name in joined)

    def test_partitions_go_to_the_racks_they_are_in(self) -> None:
        group = {f"m{n}": Subscription(("t",), rack=rack) for n, rack in enumerate(["east", "west", "north"])}
        placed = {TopicPartition("t", n): frozenset({["north", "west", "east"][n // 2]}) for n in range(6)}
        plan = RangeAssignor().assign({"t": 6}, group, placed)
        assert shown(plan) == {"m0": ["t-4", "t-5"], "m1": ["t-2", "t-3"], "m2": ["t-0", "t-1"]}

    def test_quotas_come_before_racks(self) -> None:
        group = {name: Subscription(("t",), rack=rack) for name, rack in {"m0": "east", "m1": "west"}.items()}
        placed = {TopicPartition("t", n): frozenset({"west" if n else "east"}) for n in range(5)}
        plan = RangeAssignor().assign({"t": 5}, group, placed)
        assert shown(plan) == {"m0": ["t-0", "t-4"], "m1": ["t-1", "t-2", "t-3"]}

    def test_one_rack_must_hold_the_partition_of_every_co_partitioned_topic(self) -> None:
        group = {f"m{n}": Subscription(("l", "r"), rack=rack) for n, rack in enumerate(["east", "west"])}
        placed = {
            TopicPartition("l", 0): frozenset({"west"}),
            TopicPartition("r", 0): frozenset({"west", "east"}),
            TopicPartition("l", 1): frozenset({"west"}),
            TopicPartition("r", 1): frozenset({"east"}),
        }
        plan = RangeAssignor().assign({"l": 2, "r": 2}, group, placed)
        assert shown(plan) == {"m0": ["l-1", "r-1"], "m1": ["l-0", "r-0"]}


@pytest.mark.parametrize("order", ["east west", "west east"])
def test_of_two_near_members_the_first_in_order_is_asked_first(order: str) -> None:
    first, second = order.split()
    group = {"m0": Subscription(("t",), rack=first), "m1": Subscription(("t",), rack=second)}
    placed = {
        TopicPartition("t", 0): frozenset({"east", "west"}),
        TopicPartition("t", 1): frozenset({first}),
    }
    assert shown(RangeAssignor().assign({"t": 2}, group, placed)) == {"m0": ["t-0"], "m1": ["t-1"]}
