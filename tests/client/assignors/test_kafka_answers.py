"""The assignors beside Kafka's own: the same where the plan is prescribed, never worse where it is a matter of quality."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

import pytest

from client.assignors import CooperativeStickyAssignor, RangeAssignor, RoundRobinAssignor, StickyAssignor
from tests.client.assignors.kafka_answers import (
    Case,
    Measures,
    check_without,
    happen,
    is_refusal,
    owners,
    read_cases,
    settle,
)

RANGE, ROUND_ROBIN, STICKY, COOPERATIVE = (
    RangeAssignor(),
    RoundRobinAssignor(),
    StickyAssignor(),
    CooperativeStickyAssignor(),
)


def measured(name: str, case: Case) -> Measures:
    """What the sticky or the cooperative-sticky assignor makes of a case that is no chain."""
    if name == STICKY.name:
        plan, rounds = STICKY.assign(case.partitions, case.members), 1
        check_without(False, case.partitions, case.members, plan)
    else:
        generation = 1 + max(each.generation for each in case.members.values())
        plan, _, rounds, _ = settle(COOPERATIVE, case.partitions, case.members, generation)
    return Measures.of(case.partitions, case.members, plan, rounds)


def test_range_and_round_robin_are_the_same_partition_for_partition() -> None:
    count = 0
    for case in read_cases("plain"):
        count += 1
        for assignor in (RANGE, ROUND_ROBIN):
            plan = assignor.assign(case.partitions, case.members)
            assert owners(case, plan) == case.answers[assignor.name], case.name
    assert count == 750


@pytest.mark.parametrize(("kind", "cases"), [("plain", 750), ("true", 538), ("conflict", 462)])
@pytest.mark.parametrize("name", [STICKY.name, COOPERATIVE.name])
def test_sticky_plans_are_never_worse(name: str, kind: str, cases: int) -> None:
    count = 0
    for case in read_cases(kind):
        count += 1
        ours = measured(name, case)
        if is_refusal(case.answers[name]):
            continue
        kafka = Measures.of_answer(case.answers[name])
        assert ours.unevenness <= kafka.unevenness, case.name
        if ours.unevenness == kafka.unevenness:
            assert ours.gap <= max(1, kafka.gap), case.name
            assert ours.moved <= kafka.moved, case.name
            if ours.moved == kafka.moved:
                assert ours.rounds <= kafka.rounds, case.name
    assert count == cases


def test_with_racks_range_gives_each_member_as_many_of_each_topic_and_more_of_them_near() -> None:
    count, near, kafka_near = 0, 0, 0
    for case in read_cases("rack"):
        count += 1
        plan = RANGE.assign(case.partitions, case.members, case.racks)
        check_without(False, case.partitions, case.members, plan)
        ours, kafka = owners(case, plan), case.answers["range"]
        assert {topic: sorted(Counter(each).values()) for topic, each in ours.items()} == {
            topic: sorted(Counter(each).values()) for topic, each in kafka.items()
        }, case.name
        near += sum(case.members[member_id].rack in case.racks[tp] for member_id, share in plan.items() for tp in share)
        kafka_near += case.answers["near"]
    assert count == 500
    assert near >= kafka_near > 4_000


def replayed(name: str, case: Case) -> list[Measures | None]:
    """What one of the sticky assignors makes of the steps of a chain, each going on from the one before."""
    steps: list[Measures | None] = []
    generation = 0
    for events in case.steps:
        missing = happen(case, events)
        if not case.members:
            steps.append(None)
            continue
        before = case.members
        if name == STICKY.name:
            plan, generation = STICKY.assign(case.partitions, before), generation + 1
            check_without(False, case.partitions, before, plan)
            case.members = {
                member_id: each
                if member_id in missing
                else replace(each, owned_partitions=tuple(plan[member_id]), generation=generation)
                for member_id, each in before.items()
            }
        else:
            plan, case.members, _, generation = settle(COOPERATIVE, case.partitions, before, generation, missing)
        steps.append(Measures.of(case.partitions, before, plan))
    return steps


@pytest.mark.parametrize("name", [STICKY.name, COOPERATIVE.name])
def test_chains_of_rebalances_are_as_balanced_at_each_step_and_move_less_in_all(name: str) -> None:
    # Of two equally good plans it shows only later which was the luckier one: moves are compared over all chains.
    count = moved = kafka_moved = 0
    for case in read_cases("chain"):
        count += 1
        ours, kafka = replayed(name, case), case.answers[name]
        if any(step and is_refusal(step) for step in kafka):
            continue
        pairs = [
            (mine, Measures.of_answer(step[:4])) for mine, step in zip(ours, kafka, strict=True) if mine is not None
        ]
        assert all(mine.unevenness <= other.unevenness for mine, other in pairs), case.name
        if all(mine.unevenness == other.unevenness for mine, other in pairs):
            moved += sum(mine.moved for mine, _ in pairs)
            kafka_moved += sum(other.moved for _, other in pairs)
    assert count == 250
    assert moved <= kafka_moved
    assert kafka_moved > 3_000
