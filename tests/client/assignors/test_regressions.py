"""What hurt the users of other clients' sticky assignors, each named by its issue."""

from __future__ import annotations

from dataclasses import replace

import pytest

from client.assignors import Assignor, CooperativeStickyAssignor, StickyAssignor, Subscription
from protocol.subscription import TopicPartition
from tests.client.assignors.histories import claiming
from tests.client.assignors.oracles import check_valid, improving_chain, kept

STICKY = StickyAssignor()
COOPERATIVE = CooperativeStickyAssignor()
both = pytest.mark.parametrize("assignor", [STICKY, COOPERATIVE], ids=lambda assignor: assignor.name)


def partitions_of(topic: str, *numbers: int) -> tuple[TopicPartition, ...]:
    return tuple(TopicPartition(topic, number) for number in numbers)


@both
def test_librdkafka_4783_members_of_one_client_id_with_disjoint_subscriptions_do_not_loop(assignor: Assignor) -> None:
    # Their member ids differ only in the part the coordinator adds; each instance subscribes to its own topic.
    partitions = {"orders": 6, "payments": 1, "audit": 3}
    members = {
        f"app-{suffix}": Subscription((topic,)) for suffix, topic in zip("7fa2b0", [*partitions] * 2, strict=True)
    }
    for generation in range(5):
        plan = assignor.assign(partitions, members)
        check_valid(partitions, members, plan)
        assert sorted(len(share) for share in plan.values()) == [0, 1, 1, 2, 3, 3]
        members = claiming(members, plan, generation)


def test_librdkafka_4629_each_of_450_members_trickling_in_moves_no_more_than_its_own_share() -> None:
    partitions = {"t": 3000}
    members: dict[str, Subscription] = {}
    for count in range(1, 451):
        members[f"m{count:03}"] = Subscription(("t",))
        plan = STICKY.assign(partitions, members)
        assert kept(members, plan) >= (3000 - (3000 // count) if count > 1 else 0)
        members = claiming(members, plan, count)
    check_valid(partitions, members, plan)
    assert {len(share) for share in plan.values()} == {6, 7}


@both
def test_kafka_15106_a_balanced_group_with_unequal_subscriptions_is_seen_as_balanced(assignor: Assignor) -> None:
    partitions = {f"t{n:02}": 20 for n in range(20)}
    members = {f"m{n:03}": Subscription(tuple(f"t{t:02}" for t in range(n % 19 + 1))) for n in range(100)}
    plan = STICKY.assign(partitions, members)
    assert improving_chain(members, plan) is None
    for generation in range(3):
        members = claiming(members, plan, generation)
        assert assignor.assign(partitions, members) == plan


def test_kafka_15170_racks_do_not_make_the_cooperative_form_forget_what_changes_hands() -> None:
    held = partitions_of("t", 0, 1, 2, 3, 4)
    members = {
        "m1": Subscription(("t",), owned_partitions=held, generation=4, rack="east"),
        "m2": Subscription(("t",), generation=4, rack="west"),
    }
    assert {member: len(share) for member, share in STICKY.assign({"t": 5}, members).items()} == {"m1": 3, "m2": 2}
    assert {member: len(share) for member, share in COOPERATIVE.assign({"t": 5}, members).items()} == {"m1": 3, "m2": 0}


@both
def test_aiokafka_1176_a_group_whose_members_never_tell_a_generation_comes_to_rest(assignor: Assignor) -> None:
    # 84 members with different topics, all of which claim generation -1, and at first the same partitions.
    partitions = {f"t{n}": 4 for n in range(84)}
    members = {
        f"m{n}": Subscription((f"t{n}", f"t{(n + 1) % 84}"), owned_partitions=partitions_of(f"t{n}", 0, 1, 2))
        for n in range(84)
    }
    members |= {"late": Subscription(("t0", "t1"), owned_partitions=partitions_of("t0", 0, 1, 2))}
    plans = []
    for _ in range(4):
        plans.append(assignor.assign(partitions, members))
        members = claiming(members, plans[-1], -1)
    assert plans[2] == plans[3]
    check_valid(partitions, members, plans[2])


@both
def test_confluent_kafka_dotnet_1271_nothing_waits_for_a_member_that_did_not_rejoin(assignor: Assignor) -> None:
    members = {f"m{n}": Subscription(("t",)) for n in range(3)}
    members = claiming(members, assignor.assign({"t": 9}, members), 1)
    del members["m1"]
    plan = assignor.assign({"t": 9}, members)
    check_valid({"t": 9}, members, plan)
    assert kept(members, plan) == 6


@both
def test_kafka_17710_large_groups_of_unequal_members_end(assignor: Assignor) -> None:
    topics = [f"t{n:03}" for n in range(200)]
    partitions = {topic: 10 + n for n, topic in enumerate(topics)}
    members = {f"m{n:04}": Subscription(tuple(topics[n % 97 :: 37])) for n in range(2000)}
    members = claiming(members, STICKY.assign(partitions, members), 1)
    members["new"] = Subscription(tuple(topics))
    plan = STICKY.assign(partitions, members)
    check_valid(partitions, members, plan)
    assert improving_chain(members, plan) is None
    # One member came, and it takes one share: nothing else has a reason to move.
    assert sum(len(share) for share in plan.values()) - kept(members, plan) == len(plan["new"])
    assert len(assignor.assign(partitions, members)["new"]) <= len(plan["new"])


@both
@pytest.mark.parametrize("lucky", ["m1", "m2", "m3"])
def test_kafka_18688_any_member_may_hold_the_one_more(assignor: Assignor, lucky: str) -> None:
    shares = {"m1": (0, 1), "m2": (2, 3), "m3": (4, 5)}
    members = {
        member: Subscription(
            ("t",), owned_partitions=partitions_of("t", *numbers, *((6,) if member == lucky else ())), generation=8
        )
        for member, numbers in shares.items()
    }
    plan = assignor.assign({"t": 7}, members)
    assert plan == {member: list(subscription.owned_partitions) for member, subscription in members.items()}


@both
def test_kafka_14639_a_member_that_missed_a_generation_keeps_what_no_other_claims(assignor: Assignor) -> None:
    members = {
        "late": Subscription(("t",), owned_partitions=partitions_of("t", 0, 1), generation=6),
        "m1": Subscription(("t",), owned_partitions=partitions_of("t", 2), generation=7),
        "m2": Subscription(("t",), owned_partitions=partitions_of("t", 3), generation=7),
    }
    plan = assignor.assign({"t": 4}, members)
    assert plan == {member: list(subscription.owned_partitions) for member, subscription in members.items()}


def test_kafka_13406_an_old_claim_does_not_take_a_partition_from_its_holder() -> None:
    # Seen from the old claim the partition is taken from m1 and given to m2 in one step; in truth m2 has it all the time.
    members = {
        "m1": Subscription(("t",), owned_partitions=partitions_of("t", 0, 1), generation=6),
        "m2": Subscription(("t",), owned_partitions=partitions_of("t", 1), generation=7),
    }
    assert COOPERATIVE.assign({"t": 2}, members) == {
        "m1": list(partitions_of("t", 0)),
        "m2": list(partitions_of("t", 1)),
    }


def test_kafka_8767_two_rounds_suffice_where_the_claims_are_true() -> None:
    partitions = {f"t{n}": n + 1 for n in range(10)}
    members = {f"m{n}": Subscription(tuple(f"t{t}" for t in range(n, 10))) for n in range(4)}
    members = claiming(members, COOPERATIVE.assign(partitions, members), 1)
    members |= {f"n{n}": Subscription(tuple(f"t{t}" for t in range(0, 10, n + 1))) for n in range(4)}
    first = COOPERATIVE.assign(partitions, members)
    second = COOPERATIVE.assign(partitions, claiming(members, first, 2))
    check_valid(partitions, members, second)
    assert all(set(first[member]) <= set(second[member]) for member in members)
    assert COOPERATIVE.assign(partitions, claiming(members, second, 3)) == second


def test_kafka_9987_as_many_members_as_partitions_of_one_topic() -> None:
    partitions = {"a": 2000, "b": 2000}
    members = {f"m{n:04}": Subscription(("a", "b")) for n in range(2000)}
    plan = STICKY.assign(partitions, members)
    assert {tuple(partition.topic for partition in share) for share in plan.values()} == {("a", "b")}
    assert COOPERATIVE.assign(partitions, claiming(members, plan, 1)) == plan


@both
def test_kafka_12675_many_unequal_members_each_short_of_one_topic(assignor: Assignor) -> None:
    topics = [f"t{n:02}" for n in range(50)]
    members = {f"m{n:03}": Subscription(tuple(topics[: n % 50] + topics[n % 50 + 1 :])) for n in range(200)}
    plan = assignor.assign(dict.fromkeys(topics, 100), members)
    assert {len(share) for share in plan.values()} == {25}
    moved = {member: replace(members[member], topics=tuple(topics)) for member in members}
    assert assignor.assign(dict.fromkeys(topics, 100), claiming(moved, plan, 1)) == plan
