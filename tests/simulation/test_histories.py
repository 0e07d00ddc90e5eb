"""Whole histories: the real daemon and the real clients through seeded faults. ``python -m tests.simulation`` runs more."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import pytest

from tests.simulation import kafka_transaction_workloads
from tests.simulation.kafka_client import MIDDLE, NEW, OLD
from tests.simulation.plan import ASSIGNORS, DRAWN_APART, Plan, draw, from_json, to_json
from tests.simulation.registry import FAULTS, INVARIANTS, WORKLOADS
from tests.simulation.shrink import shrink
from tests.simulation.simulate import Outcome, plan_of, simulate
from tests.simulation.story import lines

pytestmark = pytest.mark.timeout(600)  # half a minute of one processor, which others have too

HISTORIES = 160
_BLOCK = 10

REGRESSIONS = [
    [field.strip() for field in line.split(" | ", 3)]
    for line in (Path(__file__).parent / "regressions.txt").read_text().splitlines()
    if line and not line.startswith("#")
]


def complaint(outcome: Outcome) -> str:
    """What to print about a history that broke something."""
    broken = "\n".join(f"  {violation.invariant}: {violation.text}" for violation in outcome.violations)
    return f"python -m tests.simulation --seed {outcome.plan.seed} --shrink\n{broken}\n{to_json(outcome.plan)}"


@pytest.mark.parametrize("first", range(0, HISTORIES, _BLOCK))
def test_every_invariant_holds_in_every_history(first: int) -> None:
    """And they are not empty: together they acknowledge, hand out and break what there is to break."""
    outcomes = []
    for seed in range(first, first + _BLOCK):
        outcome = simulate(plan_of(seed)).without_events()
        assert not outcome.violations, complaint(outcome)
        outcomes.append(outcome)
    assert sum(outcome.acknowledged for outcome in outcomes) > 20
    assert sum(outcome.handed_out for outcome in outcomes) > 20
    assert sum(outcome.injected for outcome in outcomes) > 20


@pytest.mark.parametrize(
    ("version", "invariant", "what", "plan"),
    REGRESSIONS,
    ids=[f"{entry[1]}-{i}" for i, entry in enumerate(REGRESSIONS)],
)
def test_what_once_broke_an_invariant_does_not_any_more(version: str, invariant: str, what: str, plan: str) -> None:
    assert invariant in INVARIANTS
    outcome = simulate(from_json(plan))
    assert not outcome.violations, f"{what} (found with Python {version})\n{complaint(outcome)}"


def test_histories_draw_every_workload_and_fault() -> None:
    plans = [plan_of(seed) for seed in range(HISTORIES)]
    assert {name for plan in plans for name in plan.workloads} == set(WORKLOADS)
    assert {name for plan in plans for name in plan.faults} == set(FAULTS)


def test_a_history_without_faults_acknowledges_and_reads_everything() -> None:
    plan = Plan(seed=1, workloads=("producing", "consuming"), faults=())
    outcome = simulate(plan)
    assert not outcome.violations
    assert outcome.acknowledged == plan.records


@pytest.mark.parametrize("assignor", ASSIGNORS[:4])
def test_a_rolling_restart_of_static_members_makes_no_rebalance(assignor: str) -> None:
    plan = Plan(seed=1, workloads=("producing", "rolling_restart"), faults=(), assignor=assignor, records=100)
    outcome = simulate(plan, verbose=True)
    assert not outcome.violations, complaint(outcome)
    of_group = [event for event in outcome.events if "group=rolling" in event.what]
    begun = [event for event in of_group if "rebalance_started" in event.what]
    back = [event for event in of_group if "static_member_replaced" in event.what]
    assert len(back) == 3
    assert begun[-1].at_s < back[0].at_s, begun[-1].what


def test_a_seed_can_be_repeated_and_watching_changes_nothing() -> None:
    plan = plan_of(5)
    first, second, watched = simulate(plan), simulate(plan), simulate(plan, verbose=True)
    assert first.trace_hash == second.trace_hash == watched.trace_hash
    story = list(lines(watched.events))
    assert len(story) > 20
    assert not any(" object at 0x" in line for line in story)


def test_kafka_s_clients_write_and_read_everything_and_replay() -> None:
    kafka = ("kafka_producing", "kafka_consuming", "kafka_sharing")
    plan = Plan(seed=1, workloads=kafka, faults=(), fault_s=6.0)
    first, again = simulate(plan), simulate(plan, verbose=True)
    assert not first.violations, complaint(first)
    assert first.acknowledged >= plan.records
    assert first.handed_out > first.acknowledged  # by the group of Kafka's members, and the one of both kinds
    assert first.trace_hash == again.trace_hash
    owners = [event.who for event in again.events if "of mixed, its share is" in event.what]
    assert {owner.startswith("kafka-") for owner in owners} == {True, False}


@pytest.mark.parametrize("versions", [OLD, MIDDLE, NEW], ids=["one epoch", "one epoch until asked", "epoch each"])
def test_kafka_s_transactional_clients_of_each_kind_commit_and_abort(
    versions: Mapping[int, int], monkeypatch: pytest.MonkeyPatch
) -> None:
    """And a group of theirs copies each record once."""
    monkeypatch.setattr(kafka_transaction_workloads, "VERSIONS", (versions,))
    plan = Plan(seed=1, workloads=("producing", "kafka_transacting", "kafka_transforming"), faults=(), fault_s=2.0)
    outcome = simulate(plan, verbose=True)
    assert not outcome.violations, complaint(outcome)
    told = [event.what for event in outcome.events if event.who.startswith("kafka-transactor")]
    assert sum("'committed'" in what for what in told) > 10
    assert any("'aborted'" in what for what in told)


def test_workloads_drawn_apart_change_no_plan_without_them() -> None:
    early = tuple(name for name in WORKLOADS if name not in DRAWN_APART)
    plans = [(plan_of(seed), draw(seed, early, tuple(FAULTS))) for seed in range(HISTORIES)]
    same = [now == before for now, before in plans]
    assert same == [not set(now.workloads) & set(DRAWN_APART) for now, _ in plans]
    assert {*same} == {True, False}


def test_a_failing_history_shrinks_to_what_it_needs() -> None:
    def fails(plan: Plan) -> bool:
        return "consuming" in plan.workloads and {"partition", "slow_disk"} <= set(plan.faults) and plan.records > 8

    plan = Plan(seed=1, workloads=tuple(WORKLOADS), faults=tuple(FAULTS), consumers=3, producers=2, records=80)
    small = shrink(plan, fails)
    assert (small.workloads, small.faults) == (("consuming",), ("partition", "slow_disk"))
    assert (small.consumers, small.producers, small.partitions, small.records, small.fifo) == (1, 1, 1, 10, True)


def test_a_plan_survives_its_text_and_seeds_differ() -> None:
    names = ("a", "b", "c")
    assert from_json(to_json(draw(7, names, names))) == draw(7, names, names)
    assert len({to_json(draw(seed, names, names)) for seed in range(20)}) == 20
