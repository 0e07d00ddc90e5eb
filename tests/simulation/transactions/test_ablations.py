"""A simulation that catches nothing is worth nothing: without a safeguard, an invariant that watches over it fails."""

from __future__ import annotations

import pytest

from tests.simulation.replay import check_back_on, check_missed
from tests.simulation.rings import THE_CORE, switched_off
from tests.simulation.transactions.ablations import ABLATIONS, Ablation, first_failure
from tests.simulation.transactions.facts import INVARIANTS
from tests.simulation.transactions.history import run
from tests.simulation.transactions.plan import draw


@pytest.mark.parametrize("ablation", ABLATIONS, ids=lambda ablation: ablation.safeguard)
def test_without_a_safeguard_an_invariant_fails(ablation: Ablation) -> None:
    check_missed(ablation, first_failure)


def test_a_safeguard_is_on_again_afterwards() -> None:
    check_back_on(ABLATIONS, switched_off, draw(0, 300), run)


def test_nothing_fails_with_all_safeguards_where_an_ablation_looks_closely() -> None:
    for focus in {ablation.focus: None for ablation in ABLATIONS}:
        for seed in range(50):
            verdict = run(focus(draw(seed, 600)))
            assert not verdict.invariant, f"seed {seed}: {verdict.invariant}: {verdict.message}"


def test_each_ablation_names_invariants_that_exist() -> None:
    named = {name for ablation in ABLATIONS for name in ablation.caught_by}
    assert named - INVARIANTS <= {THE_CORE}
