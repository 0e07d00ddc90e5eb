"""Each safeguard switched off is seen by an invariant of the right name: the simulator is no green light."""

from __future__ import annotations

import pytest

from tests.simulation.ablations import ABLATIONS, Ablation
from tests.simulation.registry import INVARIANTS
from tests.simulation.simulate import Outcome, simulate

pytestmark = pytest.mark.timeout(600)  # half a minute of one processor, which others have too

SEEDS = 300


def caught(ablation: Ablation) -> Outcome | None:
    """The first history in which one of the right invariants fails."""
    for seed in range(ablation.first, ablation.first + SEEDS):
        outcome = simulate(ablation.plan_of(seed), without=[ablation.off()])
        if set(outcome.broken) & set(ablation.invariants):
            return outcome
    return None


@pytest.mark.parametrize("name", ABLATIONS)
def test_without_a_safeguard_an_invariant_fails(name: str) -> None:
    ablation = ABLATIONS[name]
    assert set(ablation.invariants) <= set(INVARIANTS)
    assert caught(ablation) is not None, f"{ablation.what}: nothing saw that it is off in {SEEDS} histories"
