"""Sticky: balance first, then the fewest moves; what claims are worth; cases that hurt users of other clients."""

from __future__ import annotations

import os
import random
import subprocess
import sys
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from client.assignors import Assignor, CooperativeStickyAssignor, StickyAssignor, Subscription
from protocol.subscription import TopicPartition
from tests.client.assignors.histories import TOPICS, Event, Group, claiming, histories, without_void_claims
from tests.client.assignors.oracles import (
    best_by_exhaustion,
    check_valid,
    claims_of,
    improving_chain,
    kept,
    subscribed_partitions,
    unevenness,
)

STICKY = StickyAssignor()
BOTH: list[Assignor] = [StickyAssignor(), CooperativeStickyAssignor()]


def subscribed(*topics: str, owned: str = "", generation: int = -1) -> Subscription:
    claims = tuple(TopicPartition(name[0], int(name[1:])) for name in owned.split())
    return Subscription(topics, owned_partitions=claims, generation=generation)


def shown(plan: dict[str, list[TopicPartition]]) -> dict[str, str]:
    return {member: " ".join(f"{topic}{partition}" for topic, partition in share) for member, share in plan.items()}


class TestEveryHistory:
    @given(history=histories())
    def test_ends_in_valid_plans_that_no_chain_of_moves_improves(self, history: list[list[Event]]) -> None:
        group = Group()
        for events in history:
            for event in events:
                group.happen(event)
            plan = group.rebalance(STICKY)
            check_valid(group.partitions, group.members, plan)
            assert improving_chain(group.members, plan) is None

    @given(history=histories(equal=True))
    def test_of_members_with_equal_subscriptions_differs_by_one_at_most(self, history: list[list[Event]]) -> None:
        group = Group()
        for events in history:
            for event in events:
                group.happen(event)
            sizes = [len(share) for share in group.rebalance(STICKY).values()]
            assert not sizes or max(sizes) - min(sizes) <= 1

    @given(history=histories(largest=4))
    @settings(deadline=None)
    def test_of_a_small_group_has_the_best_balance_and_the_fewest_moves_there_are(
        self, history: list[list[Event]]
    ) -> None:
        group = Group()
        for events in history:
            for event in events:
                group.happen(event)
            before = without_void_claims(group)
            plan = group.rebalance(STICKY)
            assert (unevenness(plan), kept(before, plan)) == best_by_exhaustion(group.partitions, before)

    @given(history=histories())
    def test_moves_nothing_when_nothing_changed(self, history: list[list[Event]]) -> None:
        group = Group()
        for events in history:
            for event in events:
                group.happen(event)
            assert group.rebalance(STICKY) == group.rebalance(STICKY)

    @given(history=histories())
    def test_depends_on_content_only(self, history: list[list[Event]]) -> None:
        group = Group()
        for events in history:
            for event in events:
                group.happen(event)
            turned = {
                member: replace(
                    subscription,
                    topics=subscription.topics[::-1],
                    owned_partitions=subscription.owned_partitions[::-1],
                )
                for member, subscription in reversed(group.members.items())
            }
            turned_partitions = dict(reversed(group.partitions.items()))
            assert group.rebalance(STICKY) == STICKY.assign(turned_partitions, turned)


# Claims as wild as can be: of anything, several times, of any generation.
wild_claims = st.lists(
    st.builds(
        TopicPartition, st.sampled_from([*TOPICS, "nowhere"]), st.integers(-3, 9) | st.sampled_from([-(10**30), 10**30])
    ),
    max_size=20,
).map(tuple)
wild_members = st.dictionaries(
    st.sampled_from(["m1", "m2", "m3", "m4"]),
    st.builds(
        Subscription,
        st.lists(st.sampled_from(TOPICS)).map(tuple),
        owned_partitions=wild_claims,
        generation=st.integers(-1, 2) | st.just(2**31 - 1),
    ),
)
small_clusters = st.dictionaries(st.sampled_from(TOPICS), st.integers(0, 5))


class TestLies:
    @given(partitions=small_clusters, members=wild_members)
    def test_do_no_harm(self, partitions: dict[str, int], members: dict[str, Subscription]) -> None:
        plan = STICKY.assign(partitions, members)
        check_valid(partitions, members, plan)
        assert improving_chain(members, plan) is None

    @given(partitions=small_clusters, members=wild_members)
    @settings(deadline=None)
    def test_leave_the_rightful_claims_the_fewest_moves(
        self, partitions: dict[str, int], members: dict[str, Subscription]
    ) -> None:
        rightful: dict[str, list[TopicPartition]] = {member: [] for member in members}
        for partition in subscribed_partitions(partitions, members):
            claimants = [
                (members[member].generation, member)
                for member, claimed in claims_of(members).items()
                if partition in claimed and partition.topic in members[member].topics
            ]
            newest = [member for generation, member in claimants if generation == max(claimants)[0]]
            if len(newest) == 1:
                rightful[newest[0]].append(partition)
        honest = claiming(members, rightful, 1)
        plan = STICKY.assign(partitions, members)
        assert (unevenness(plan), kept(honest, plan)) == best_by_exhaustion(partitions, honest)


class TestClaims:
    def test_the_higher_generation_wins(self) -> None:
        group = {"m1": subscribed("t", owned="t0 t1", generation=3), "m2": subscribed("t", owned="t0 t1", generation=4)}
        plan = STICKY.assign({"t": 4}, group)
        assert shown(plan) == {"m1": "t2 t3", "m2": "t0 t1"}

    def test_of_two_claims_in_one_generation_neither_holds(self) -> None:
        # Had a claim to t0 held, m1 or m2 would keep it; now t0 is dealt out like any free partition.
        group = {
            "m1": subscribed("t", owned="t0 t1", generation=3),
            "m2": subscribed("t", owned="t0 t2", generation=3),
            "m3": subscribed("t", generation=3),
        }
        assert shown(STICKY.assign({"t": 3}, group)) == {"m1": "t1", "m2": "t2", "m3": "t0"}

    def test_a_third_claim_of_an_older_generation_does_not_hold_either(self) -> None:
        group = {
            "m1": subscribed("t", owned="t0 t1", generation=3),
            "m2": subscribed("t", owned="t0 t2", generation=3),
            "m3": subscribed("t", owned="t0 t3", generation=2),
            "m4": subscribed("t", generation=3),
        }
        plan = shown(STICKY.assign({"t": 4}, group))
        assert plan == {"m1": "t1", "m2": "t2", "m3": "t3", "m4": "t0"}

    def test_claiming_twice_is_claiming_once(self) -> None:
        group = {"m1": subscribed("t", owned="t1 t1 t1", generation=1), "m2": subscribed("t", generation=1)}
        assert shown(STICKY.assign({"t": 2}, group)) == {"m1": "t1", "m2": "t0"}

    def test_a_topic_no_longer_subscribed_is_given_to_others(self) -> None:
        group = {"m1": subscribed("b", owned="a0 a1 b0", generation=1), "m2": subscribed("a", "b", generation=1)}
        assert shown(STICKY.assign({"a": 2, "b": 1}, group)) == {"m1": "b0", "m2": "a0 a1"}

    def test_what_vanished_is_forgotten_and_what_grew_is_shared(self) -> None:
        group = {"m1": subscribed("a", "b", owned="a0 b0", generation=1), "m2": subscribed("a", "b", owned="a1 b1")}
        assert shown(STICKY.assign({"b": 4}, group)) in (
            {"m1": "b0 b2", "m2": "b1 b3"},
            {"m1": "b0 b3", "m2": "b1 b2"},
        )

    def test_both_generations_are_read_from_the_same_field(self) -> None:
        # Kafka compares one member's subscription with another one's user data.
        old = replace(subscribed("t", owned="t0 t1", generation=1), user_data=b"\x00\x00\x00\x09")
        group = {"m1": old, "m2": subscribed("t", owned="t0 t1", generation=2)}
        assert shown(STICKY.assign({"t": 4}, group)) == {"m1": "t2 t3", "m2": "t0 t1"}

    def test_a_group_that_starts_over_at_generation_1_is_new_to_a_leader_that_is_not(self) -> None:
        # Kafka's leader remembers the highest generation it ever saw.
        group = {"m1": subscribed("t", owned="t1", generation=900), "m2": subscribed("t", owned="t0", generation=900)}
        assert shown(STICKY.assign({"t": 2}, group)) == {"m1": "t1", "m2": "t0"}
        again = {member: replace(subscription, generation=1) for member, subscription in group.items()}
        assert shown(STICKY.assign({"t": 2}, again)) == {"m1": "t1", "m2": "t0"}


class TestWorkedExamples:
    def test_members_that_can_hold_few_get_them_and_the_rest_is_for_the_others(self) -> None:
        group = {"m1": subscribed("a"), "m2": subscribed("a", "b"), "m3": subscribed("a", "b", "c")}
        plan = STICKY.assign({"a": 1, "b": 2, "c": 3}, group)
        assert shown(plan) == {"m1": "a0", "m2": "b0 b1", "m3": "c0 c1 c2"}

    def test_partitions_of_a_topic_spread_over_the_members(self) -> None:
        group = {member: subscribed("a", "b", "c") for member in ("m1", "m2", "m3")}
        plan = STICKY.assign({"a": 3, "b": 3, "c": 3}, group)
        assert shown(plan) == {"m1": "a0 b0 c0", "m2": "a1 b1 c1", "m3": "a2 b2 c2"}

    def test_a_member_that_joins_gets_partitions_of_many_topics(self) -> None:
        topics = tuple("abcdefgh")
        group = claiming(
            {f"m{n}": Subscription(topics) for n in range(8)},
            STICKY.assign(dict.fromkeys(topics, 9), {f"m{n}": Subscription(topics) for n in range(8)}),
            1,
        )
        plan = STICKY.assign(dict.fromkeys(topics, 9), group | {"new": Subscription(topics)})
        assert len({partition.topic for partition in plan["new"]}) >= 6

    def test_a_chain_of_moves_is_found_however_long(self) -> None:
        # Each member shares one topic with the next; the last has nothing, the first one too many.
        count = 300
        group = {
            f"m{n:03}": Subscription(
                (f"t{n:03}", f"t{n + 1:03}"),
                owned_partitions=(TopicPartition(f"t{n:03}", 0), TopicPartition(f"t{n:03}", 1)),
                generation=1,
            )
            for n in range(count)
        }
        group[f"m{count:03}"] = Subscription((f"t{count:03}",), generation=1)
        partitions = {f"t{n:03}": 2 for n in range(count)} | {f"t{count:03}": 1}
        plan = STICKY.assign(partitions, group)
        assert sorted(len(share) for share in plan.values()) == [1] + [2] * count
        assert kept(group, plan) == 2 * count
        partitions["t000"] = 4
        plan = STICKY.assign(partitions, group)
        assert improving_chain(group, plan) is None

    def test_no_member_and_no_partition(self) -> None:
        assert STICKY.assign({"t": 3}, {}) == {}
        assert STICKY.assign({}, {"m1": subscribed("t", owned="t0"), "m2": subscribed()}) == {"m1": [], "m2": []}
        assert STICKY.assign({"t": 0, "u": 2}, {"m1": subscribed("t"), "m2": subscribed()}) == {"m1": [], "m2": []}


def test_the_plan_does_not_depend_on_the_hash_seed() -> None:
    program = (
        "import random\n"
        "from client.assignors import *\n"
        "from protocol.subscription import TopicPartition\n"
        "draw = random.Random(5)\n"
        "topics = [f't{n}' for n in range(30)]\n"
        "partitions = {topic: draw.randrange(1, 30) for topic in topics}\n"
        "def member():\n"
        "    claims = (TopicPartition(draw.choice(topics), draw.randrange(30)) for _ in range(25))\n"
        "    names = draw.sample(topics, draw.randrange(1, 8))\n"
        "    return Subscription(tuple(names), owned_partitions=tuple(claims), generation=draw.randrange(3))\n"
        "members = {f'm{n}': member() for n in range(60)}\n"
        "for assignor in (StickyAssignor(), CooperativeStickyAssignor()):\n"
        "    print(assignor.assign(partitions, members))\n"
    )
    shown = {
        subprocess.run(
            [sys.executable, "-c", program],
            env={**os.environ, "PYTHONHASHSEED": seed},
            capture_output=True,
            check=True,
            timeout=60,
        ).stdout
        for seed in ("0", "1", "777")
    }
    assert len(shown) == 1


@pytest.mark.parametrize("assignor", BOTH, ids=lambda assignor: assignor.name)
class TestSizes:
    """Kafka's own sizes, some smaller. What is checked is that they end, in balance; speed is for the benchmark."""

    def twice(self, assignor: Assignor, partitions: dict[str, int], members: dict[str, Subscription]) -> None:
        plan = assignor.assign(partitions, members)
        check_valid(partitions, members, plan)
        claimed = claiming(members, plan, 1)
        assert assignor.assign(partitions, claimed) == plan
        first = min(claimed)
        del claimed[first]
        after = assignor.assign(partitions, claimed)
        check_valid(partitions, claimed, after)

    def test_uniform(self, assignor: Assignor) -> None:
        topics = tuple(f"t{n:03}" for n in range(100))
        self.twice(assignor, dict.fromkeys(topics, 1000), {f"m{n:04}": Subscription(topics) for n in range(1000)})

    def test_one_member_subscribes_to_one_topic(self, assignor: Assignor) -> None:
        topics = tuple(f"t{n:03}" for n in range(100))
        members = {f"m{n:04}": Subscription(topics) for n in range(1000)} | {"m0999": Subscription(topics[:1])}
        self.twice(assignor, dict.fromkeys(topics, 1000), members)

    def test_every_fourth_member_subscribes_to_one_topic(self, assignor: Assignor) -> None:
        topics = tuple(f"t{n:03}" for n in range(100))
        members = {f"m{n:03}": Subscription(topics if n % 4 else topics[n % 100 :][:1]) for n in range(500)}
        self.twice(assignor, dict.fromkeys(topics, 200), members)

    def test_disjoint_buckets(self, assignor: Assignor) -> None:
        topics = tuple(f"t{n:03}" for n in range(100))
        members = {f"m{n:04}": Subscription(topics[n % 5 :: 5]) for n in range(2000)}
        self.twice(assignor, dict.fromkeys(topics, 200), members)

    def test_random_subscriptions_and_many_that_leave(self, assignor: Assignor) -> None:
        draw = random.Random(1)
        topics = [f"t{n:02}" for n in range(40)]
        partitions = {topic: draw.randint(1, 10) for topic in topics}
        members = {f"m{n:03}": Subscription(tuple(draw.sample(topics, draw.randint(1, 40)))) for n in range(200)}
        members = claiming(members, assignor.assign(partitions, members), 1)
        for member in draw.sample(sorted(members), 50):
            del members[member]
        plan = STICKY.assign(partitions, members)
        check_valid(partitions, members, plan)
        assert improving_chain(members, plan) is None


@pytest.mark.parametrize("seed", range(3))
def test_a_hundred_rounds_of_random_changes(seed: int) -> None:
    draw = random.Random(seed)
    topics = [f"t{n:02}" for n in range(draw.randint(10, 20))]
    partitions = {topic: draw.randint(1, 30) for topic in topics}
    members: dict[str, Subscription] = {}
    for generation in range(100):
        for number in range(draw.randint(20, 40)):
            if draw.random() < 0.2 or f"m{number:02}" not in members:
                asked = tuple(draw.sample(topics, draw.randint(1, len(topics))))
                before = members.get(f"m{number:02}", Subscription(()))
                members[f"m{number:02}"] = replace(before, topics=asked)
        for member in draw.sample(sorted(members), len(members) // 5):
            del members[member]
        partitions[draw.choice(topics)] += 1
        plan = STICKY.assign(partitions, members)
        check_valid(partitions, members, plan)
        assert improving_chain(members, plan) is None
        members = claiming(members, plan, generation)
