"""A simulation that catches nothing is worth nothing: without a safeguard, an invariant that watches over it fails."""

from __future__ import annotations

import pytest

from tests.simulation.rings import THE_CORE, switched_off
from tests.simulation.transactions.ablations import ABLATIONS, MAX_SEEDS, Ablation, first_failure
from tests.simulation.transactions.facts import INVARIANTS
from tests.simulation.transactions.history import run
from tests.simulation.transactions.plan import draw


@pytest.mark.parametrize("ablation", ABLATIONS, ids=lambda ablation: ablation.safeguard)
def test_without_a_safeguard_an_invariant_fails(ablation: Ablation) -> None:
    found = first_failure(ablation)
    assert found is not None, f"{MAX_SEEDS} seeds see nothing without {ablation.safeguard}"
    seeds, verdict = found
    print(f"without {ablation.safeguard}: {verdict.invariant} after {seeds} seeds: {verdict.message}")
    assert verdict.invariant in ablation.caught_by


def test_a_safeguard_is_on_again_afterwards() -> None:
    plan = draw(0, 300)
    before = run(plan)
    for ablation in ABLATIONS:
        with switched_off(ablation):
            pass
    assert run(plan) == before


def test_nothing_fails_with_all_safeguards_where_an_ablation_looks_closely() -> None:
    for focus in {ablation.focus: None for ablation in ABLATIONS}:
        for seed in range(50):
            verdict = run(focus(draw(seed, 600)))
            assert not verdict.invariant, f"seed {seed}: {verdict.invariant}: {verdict.message}"


def test_each_ablation_names_invariants_that_exist() -> None:
    named = {name for ablation in ABLATIONS for name in ablation.caught_by}
    assert named - INVARIANTS <= {THE_CORE}
