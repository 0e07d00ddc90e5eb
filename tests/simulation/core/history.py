"""Runs a history of the group core and makes a failing one short."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Final

from coordinator.groups import group
from tests.simulation import rings
from tests.simulation.core.invariants import violated
from tests.simulation.core.plan import SLICES, Plan
from tests.simulation.core.world import World
from tests.simulation.rings import Verdict

MAX_RESEEDS: Final = 40
"""So many other seeds are tried for a shorter history that fails alike."""


def run(plan: Plan, *, traced: bool = False) -> Verdict[Plan]:
    """Runs one history to its end or to the first invariant that fails."""
    members_per_slice = group.MEMBERS_PER_SLICE
    try:
        if SLICES in plan.behaviours:
            group.MEMBERS_PER_SLICE = 1  # type: ignore[misc]
        return rings.judge(plan, World, traced=traced, failed=violated)
    finally:
        group.MEMBERS_PER_SLICE = members_per_slice  # type: ignore[misc]


def shrink(verdict: Verdict[Plan]) -> Verdict[Plan]:
    """A shorter history that violates the same invariant, with its trace: fewer behaviours, fewer clients, fewer steps."""
    return rings.shrink(verdict, run, _smaller, lambda plan, seed, _: replace(plan, seed=seed), MAX_RESEEDS)


def _smaller(verdict: Verdict[Plan]) -> Iterator[Plan]:
    plan = replace(verdict.plan, steps=min(verdict.plan.steps, verdict.steps))
    yield from (plan.without(name) for name in plan.behaviours)
    if plan.groups > 1:
        yield replace(plan, groups=1)
    if plan.clients > 1:
        yield replace(plan, clients=plan.clients - 1)
