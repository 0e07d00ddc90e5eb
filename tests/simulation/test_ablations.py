"""Each safeguard switched off is seen by an invariant of the right name: the simulator is no green light."""

from __future__ import annotations

import pytest

from tests.simulation.ablations import ABLATIONS, Ablation
from tests.simulation.registry import INVARIANTS
from tests.simulation.shrink import shrink
from tests.simulation.simulate import Outcome, simulate

SEEDS = 300


def caught(ablation: Ablation) -> Outcome | None:
    """The first history in which one of the right invariants fails."""
    for seed in range(SEEDS):
        outcome = simulate(ablation.plan_of(seed), without=[ablation.off()])
        if set(outcome.broken) & set(ablation.invariants):
            return outcome
    return None


@pytest.mark.parametrize("name", ABLATIONS)
def test_without_a_safeguard_an_invariant_fails(name: str) -> None:
    ablation = ABLATIONS[name]
    assert set(ablation.invariants) <= set(INVARIANTS)
    assert caught(ablation) is not None, f"{ablation.what}: nothing saw that it is off in {SEEDS} histories"


def test_a_failing_history_shrinks_and_still_fails() -> None:
    ablation = ABLATIONS["generation_fence"]
    outcome = caught(ablation)
    assert outcome is not None

    def fails(plan: object) -> bool:
        return "old_generations_commit_nothing" in simulate(plan, without=[ablation.off()]).broken  # type: ignore[arg-type]

    small = shrink(outcome.plan, fails, attempts=60)
    assert fails(small)
    before = len(outcome.plan.workloads) + len(outcome.plan.faults)
    assert len(small.workloads) + len(small.faults) < before
