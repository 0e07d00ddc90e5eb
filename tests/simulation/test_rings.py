"""What rings share, asked alone: a world that cannot even be made leaves the process as it was."""

from __future__ import annotations

import gc
from dataclasses import dataclass

import pytest

from tests.simulation.rings import THE_CORE, Verdict, ViolationError, World, judge


@dataclass(frozen=True)
class Plan:
    """As little as a history needs."""

    seed: int = 0


class Ends:
    """A world that ends with an error, or well."""

    steps = 3

    def __init__(self, plan: Plan, trace: list[str] | None, error: Exception | None) -> None:
        self.error = error
        if trace is not None:
            trace.append("made")

    def run(self) -> None:
        assert not gc.isenabled()
        if self.error is not None:
            raise self.error


@pytest.mark.parametrize(
    ("error", "invariant", "message"),
    [
        (None, "", ""),
        (ViolationError("no_gaps", "a gap"), "no_gaps", "a gap"),
        (KeyError("x"), THE_CORE, "KeyError: 'x'"),
        (KeyError(), THE_CORE, "KeyError without a word"),
    ],
)
def test_a_history_ends_with_a_verdict_and_the_collector_on(
    error: Exception | None, invariant: str, message: str
) -> None:
    verdict = judge(Plan(), lambda plan, trace: Ends(plan, trace, error), traced=True)
    assert verdict == Verdict(Plan(), 3, invariant, message, ("made",))
    assert gc.isenabled()


def test_a_world_that_cannot_be_made_raises_and_leaves_the_collector_on() -> None:
    def make(plan: Plan, trace: list[str] | None) -> World:
        raise ValueError("no world")

    with pytest.raises(ValueError, match="no world"):
        judge(Plan(), make, traced=False)
    assert gc.isenabled()
