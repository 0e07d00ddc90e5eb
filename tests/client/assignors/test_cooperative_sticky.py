"""Cooperative sticky: what changes hands is first given up, then given on; done in at most three rounds."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

from hypothesis import given
from hypothesis import strategies as st

from client.assignors import CooperativeStickyAssignor, StickyAssignor, Subscription
from protocol.subscription import TopicPartition
from tests.client.assignors.histories import MEMBERS, TOPICS, Event, Group, Join, Leave, Resize, histories
from tests.client.assignors.oracles import check_valid, improving_chain

COOPERATIVE = CooperativeStickyAssignor()

MISSES = 6
"""How many rebalances in a row a member of these histories may miss."""


@dataclass
class Cooperating(Group):
    """Members that go on with what they hold during a rebalance, and give up and take up when they learn its plan."""

    hands: dict[str, set[TopicPartition]] = field(default_factory=dict)
    missed: dict[str, int] = field(default_factory=dict)

    def round(self, missing: frozenset[str] = frozenset()) -> bool:
        """One generation; members in ``missing`` join but do not learn of its plan. True when another one must follow.

        What a member is given must be in no other hands when the round begins: members learn of the plan in any order, so
        it might take up at once what the other still has.
        """
        for member in self.members:
            held = self.hands.setdefault(member, set())
            # Partitions of topics that are gone, or not subscribed any more, are given up when a rebalance begins.
            held -= {p for p in held if p.topic not in self.members[member].topics or p.topic not in self.partitions}
            self.members[member] = replace(self.members[member], owned_partitions=tuple(sorted(held)))
        for gone in self.hands.keys() - self.members.keys():
            del self.hands[gone]
        plan = COOPERATIVE.assign(self.partitions, self.members)
        self.generation += 1
        for member, share in plan.items():
            new = set(share) - self.hands[member]
            for other, held in self.hands.items():
                assert other == member or not new & held, f"{new & held} given to {member} while {other} holds it"
        again = False
        for member, share in plan.items():
            if member in missing and self.missed.get(member, 0) < MISSES:
                self.missed[member] = self.missed.get(member, 0) + 1
                again = True
                continue
            self.missed[member] = 0
            again |= bool(self.hands[member] - set(share))
            self.hands[member] = set(share)
            self.members[member] = replace(self.members[member], generation=self.generation)
        return again

    def rounds_until_stable(self) -> int:
        """Rounds until no member gave anything up, at most 9."""
        for number in range(1, 10):
            if not self.round():
                return number
        return 10


class TestEveryHistory:
    @given(history=histories())
    def test_converges_in_three_rounds_to_a_balanced_plan_without_two_hands_on_a_partition(
        self, history: list[list[Event]]
    ) -> None:
        group = Cooperating()
        for events in history:
            for event in events:
                group.happen(event)
            assert group.rounds_until_stable() <= 3
            held = {member: sorted(partitions) for member, partitions in group.hands.items()}
            check_valid(group.partitions, group.members, held)
            assert improving_chain(group.members, held) is None

    @given(history=histories(), data=st.data())
    def test_is_safe_while_events_overtake_rounds_and_members_miss_them(
        self, history: list[list[Event]], data: st.DataObject
    ) -> None:
        group = Cooperating()
        for events in history:
            for event in events:
                group.happen(event)
            group.round(data.draw(st.frozensets(st.sampled_from(MEMBERS))))
        assert group.rounds_until_stable() <= 3
        check_valid(group.partitions, group.members, {member: sorted(held) for member, held in group.hands.items()})

    @given(
        history=histories(),
        lies=st.dictionaries(
            st.sampled_from(MEMBERS),
            st.tuples(
                st.frozensets(st.builds(TopicPartition, st.sampled_from(TOPICS), st.integers(0, 9))), st.integers(-1, 9)
            ),
        ),
    )
    def test_converges_in_three_rounds_after_lies(
        self, history: list[list[Event]], lies: dict[str, tuple[frozenset[TopicPartition], int]]
    ) -> None:
        group = Cooperating()
        for events in history:
            for event in events:
                group.happen(event)
            group.rounds_until_stable()
        told = {
            member: replace(subscription, owned_partitions=tuple(lies[member][0]), generation=lies[member][1])
            if member in lies
            else subscription
            for member, subscription in group.members.items()
        }
        plan = COOPERATIVE.assign(group.partitions, told)
        group.generation += 1
        for member, share in plan.items():
            group.hands[member] = set(share)
            group.members[member] = replace(group.members[member], generation=group.generation)
        # The first round was the one with the lies.
        assert group.rounds_until_stable() <= 2
        check_valid(group.partitions, group.members, {member: sorted(held) for member, held in group.hands.items()})


def two_members() -> Cooperating:
    """m1 holds all four partitions of t; m2 has just come."""
    group = Cooperating()
    group.happen(Resize("a", 4))
    group.happen(Join("m1", ("a",)))
    assert group.rounds_until_stable() == 1
    group.happen(Join("m2", ("a",)))
    return group


def test_the_first_round_takes_away_and_the_second_gives() -> None:
    group = two_members()
    assert group.round()
    assert {member: len(held) for member, held in group.hands.items()} == {"m1": 2, "m2": 0}
    assert not group.round()
    assert {member: len(held) for member, held in group.hands.items()} == {"m1": 2, "m2": 2}


def test_what_is_free_is_given_at_once() -> None:
    group = two_members()
    group.happen(Leave("m1"))
    assert not group.round()
    assert len(group.hands["m2"]) == 4


def claiming(*partitions: int, generation: int, topics: tuple[str, ...] = ("a",)) -> Subscription:
    return Subscription(
        topics, owned_partitions=tuple(TopicPartition("a", p) for p in partitions), generation=generation
    )


def test_it_is_the_sticky_plan_without_what_is_held_back() -> None:
    members = {"m1": claiming(0, 1, 2, 3, generation=1), "m2": claiming(generation=1)}
    sticky = StickyAssignor().assign({"a": 5}, members)
    assert [len(sticky[member]) for member in ("m1", "m2")] == [3, 2]
    given = {"m1": sticky["m1"], "m2": [p for p in sticky["m2"] if p == TopicPartition("a", 4)]}
    assert COOPERATIVE.assign({"a": 5}, members) == given


class TestHoldingBack:
    def test_an_old_claim_without_rival_holds_back(self) -> None:
        members = {"m1": claiming(0, 1, generation=7), "m2": claiming(generation=9), "m3": claiming(generation=9)}
        plan = COOPERATIVE.assign({"a": 2}, members)
        assert [len(plan[member]) for member in ("m1", "m2", "m3")] == [1, 0, 0]

    def test_a_claim_to_a_topic_not_subscribed_any_more_holds_back(self) -> None:
        members = {"m1": claiming(0, generation=3, topics=("b",)), "m2": claiming(generation=3)}
        assert COOPERATIVE.assign({"a": 1, "b": 1}, members) == {"m1": [TopicPartition("b", 0)], "m2": []}

    def test_both_claimants_of_one_generation_give_up_first(self) -> None:
        members = {"m1": claiming(0, generation=3), "m2": claiming(0, generation=3)}
        assert COOPERATIVE.assign({"a": 1}, members) == {"m1": [], "m2": []}

    def test_a_member_that_keeps_a_partition_keeps_it_in_spite_of_an_older_claim(self) -> None:
        members = {"m1": claiming(0, generation=3), "m2": claiming(0, generation=2)}
        assert COOPERATIVE.assign({"a": 1}, members) == {"m1": [TopicPartition("a", 0)], "m2": []}

    def test_claims_without_generation_hold_back(self) -> None:
        members = {"m1": claiming(0, 1, generation=-1), "m2": claiming(generation=90)}
        plan = COOPERATIVE.assign({"a": 2}, members)
        assert [len(plan["m1"]), len(plan["m2"])] == [1, 0]

    def test_a_member_that_never_gives_up_holds_back_for_as_long_as_it_claims(self) -> None:
        for generation in (3, 4, 8, 9, 1_000):
            others = {member: claiming(generation=generation) for member in ("m2", "m3")}
            plan = COOPERATIVE.assign({"a": 3}, {"m1": claiming(0, 1, 2, generation=3)} | others)
            assert [len(plan[member]) for member in ("m1", "m2", "m3")] == [1, 0, 0]
        given_up = COOPERATIVE.assign({"a": 3}, {"m1": claiming(0, generation=3)} | others)
        assert [len(given_up[member]) for member in ("m1", "m2", "m3")] == [1, 1, 1]

    def test_a_member_that_names_a_false_generation_does_not_void_the_claims_of_others(self) -> None:
        members = {"m1": claiming(0, 1, 2, generation=9), "m2": claiming(generation=9)}
        for liars in ({}, {"m3": claiming(generation=2**31 - 1)}):
            plan = COOPERATIVE.assign({"a": 3}, members | liars)
            assert all(not plan[member] for member in plan if member != "m1")
        assert not COOPERATIVE.assign({"a": 2}, {"m1": claiming(0, 1, generation=9), "m2": claiming(generation=99)})[
            "m2"
        ]
