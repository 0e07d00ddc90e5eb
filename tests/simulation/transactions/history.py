"""Runs a history of transactions and makes a failing one short."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from tests.simulation import rings
from tests.simulation.rings import Verdict
from tests.simulation.transactions.plan import Plan
from tests.simulation.transactions.world import World


def run(plan: Plan, *, traced: bool = False) -> Verdict[Plan]:
    """Runs one history to its end or to the first invariant that fails."""
    return rings.judge(plan, World, traced=traced)


def shrink(verdict: Verdict[Plan]) -> Verdict[Plan]:
    """A shorter history that violates the same invariant, with its trace: fewer behaviours and workloads."""
    return rings.shrink(verdict, run, _smaller, lambda plan, seed, _: replace(plan, seed=seed))


def _smaller(verdict: Verdict[Plan]) -> Iterator[Plan]:
    plan = verdict.plan
    yield from (plan.without(name) for name in plan.behaviours)
    if len(plan.workloads) > 1:
        yield from (replace(plan, workloads=(name,)) for name in plan.workloads)
