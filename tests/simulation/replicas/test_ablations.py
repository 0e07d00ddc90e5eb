"""A simulation that catches nothing is worth nothing: without a safeguard, an invariant that watches over it fails."""

from __future__ import annotations

import pytest

from tests.simulation.replay import check_back_on, check_missed
from tests.simulation.replicas.ablations import ABLATIONS, first_failure
from tests.simulation.replicas.facts import INVARIANTS
from tests.simulation.replicas.history import run
from tests.simulation.replicas.plan import BEHAVIOURS, draw
from tests.simulation.rings import THE_CORE, Ablation, switched_off


@pytest.mark.parametrize("ablation", ABLATIONS, ids=lambda ablation: ablation.safeguard)
def test_without_a_safeguard_an_invariant_fails(ablation: Ablation) -> None:
    check_missed(ablation, first_failure)


def test_a_safeguard_is_on_again_afterwards() -> None:
    check_back_on(ABLATIONS, switched_off, draw(0, 300), run)


def test_each_ablation_names_invariants_and_behaviours_that_exist() -> None:
    assert {name for ablation in ABLATIONS for name in ablation.caught_by} <= {*INVARIANTS, THE_CORE}
    assert {name for ablation in ABLATIONS for name in ablation.behaviours} <= set(BEHAVIOURS)
