"""A simulation that catches nothing is worth nothing: without a safeguard, the invariant that watches over it fails."""

from __future__ import annotations

import pytest

from tests.simulation.core.ablations import ABLATIONS, Ablation, first_failure, switched_off
from tests.simulation.core.history import run
from tests.simulation.core.invariants import INVARIANTS
from tests.simulation.core.plan import draw
from tests.simulation.replay import check_back_on, check_missed
from tests.simulation.rings import THE_CORE


@pytest.mark.parametrize("ablation", ABLATIONS, ids=lambda ablation: ablation.safeguard)
def test_without_a_safeguard_its_invariant_fails(ablation: Ablation) -> None:
    verdict = check_missed(ablation, first_failure)
    assert (verdict.invariant,) == ablation.caught_by


def test_a_safeguard_is_on_again_afterwards() -> None:
    check_back_on(ABLATIONS, switched_off, draw(0, 300), run)


def test_each_ablation_names_an_invariant_that_exists() -> None:
    named = {name for ablation in ABLATIONS for name in (*ablation.caught_by, *ablation.blind)}
    assert named - set(INVARIANTS) <= {THE_CORE}
