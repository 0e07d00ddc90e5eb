"""Runs a history of replicas and makes a failing one short."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from tests.simulation import rings
from tests.simulation.replicas.plan import Plan
from tests.simulation.replicas.world import World
from tests.simulation.rings import Verdict


def run(plan: Plan, *, traced: bool = False) -> Verdict[Plan]:
    """Runs one history to its end or to the first invariant that fails."""
    return rings.judge(plan, World, traced=traced)


def shrink(verdict: Verdict[Plan]) -> Verdict[Plan]:
    """A shorter history that violates the same invariant, with its trace."""
    return rings.shrink(verdict, run, _smaller, _reseeded)


def _smaller(verdict: Verdict[Plan]) -> Iterator[Plan]:
    plan = verdict.plan
    yield from (plan.without(name) for name in plan.behaviours)
    if plan.nodes > max(3, plan.replicas):
        yield replace(plan, nodes=plan.nodes - 1)
    if plan.steps > 50:
        yield replace(plan, steps=plan.steps * 2 // 3)


def _reseeded(plan: Plan, seed: int, steps: int) -> Plan:
    return replace(plan, seed=seed, steps=min(plan.steps, steps))
