"""Whole histories of three nodes: they die, are cut off, lose disks. ``python -m tests.simulation --nodes 3`` runs more."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tests.simulation.cluster_probes import TOO_FEW
from tests.simulation.plan import Plan, draw_cluster
from tests.simulation.registry import CLUSTER_FAULTS, CLUSTER_WORKLOADS
from tests.simulation.simulate import plan_of, simulate
from tests.simulation.test_histories import complaint

pytestmark = pytest.mark.timeout(600)  # half a minute of one processor, which others have too

HISTORIES = 36
_BLOCK = 6
_NODES = 3


@pytest.mark.parametrize("first", range(0, HISTORIES, _BLOCK))
def test_every_invariant_holds_in_every_history(first: int) -> None:
    """And they are not empty: together they acknowledge and break what there is to break."""
    outcomes = []
    for seed in range(first, first + _BLOCK):
        outcome = simulate(plan_of(seed, _NODES)).without_events()
        assert not outcome.violations, complaint(outcome)
        outcomes.append(outcome)
    assert sum(outcome.acknowledged for outcome in outcomes) > 20
    assert sum(outcome.injected for outcome in outcomes) > 10


def test_histories_draw_every_workload_and_fault() -> None:
    plans = [plan_of(seed, _NODES) for seed in range(HISTORIES)]
    assert {name for plan in plans for name in plan.workloads} == set(CLUSTER_WORKLOADS)
    assert {name for plan in plans for name in plan.faults} == set(CLUSTER_FAULTS)


def test_a_history_without_faults_acknowledges_everything() -> None:
    plan = Plan(seed=1, workloads=("producing", "consuming"), faults=(), nodes=_NODES, fault_s=6.0)
    outcome = simulate(plan)
    assert not outcome.violations, complaint(outcome)
    assert outcome.acknowledged == plan.records


def test_producers_are_told_that_too_few_replicas_are_in_sync() -> None:
    """Followers end while records wait for them; what was told so comes once in the end, as every invariant holds."""
    plan = draw_cluster(3, ("producing_in_bursts",), ("followers_are_lost",))
    outcome = simulate(replace(plan, fault_pause_s=4.0, records=200, producers=2, nodes=_NODES))
    assert not outcome.violations, complaint(outcome)
    assert any(TOO_FEW in event.what for event in outcome.events)


def test_a_seed_can_be_repeated() -> None:
    plan = draw_cluster(5, ("producing", "consuming"), ("node_is_killed", "etcd_leader_changes"))
    first, second = simulate(plan), simulate(plan, verbose=True)
    assert first.trace_hash == second.trace_hash
