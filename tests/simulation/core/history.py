"""Runs a history and gives a verdict; makes a failing one short."""

from __future__ import annotations

import gc
from dataclasses import dataclass, replace
from typing import Final

from coordinator.groups import group
from tests.simulation.core.invariants import violated
from tests.simulation.core.plan import SLICES, Plan
from tests.simulation.core.world import World

MAX_RESEEDS: Final = 40
"""So many other seeds are tried for a shorter history that fails alike."""


@dataclass(frozen=True, slots=True)
class Verdict:
    """What became of a history."""

    plan: Plan
    steps: int
    invariant: str = ""
    """The one that failed; empty if all held."""

    message: str = ""

    trace: tuple[str, ...] = ()


def run(plan: Plan, *, traced: bool = False) -> Verdict:
    """Runs one history to its end or to the first invariant that fails."""
    trace: list[str] | None = [] if traced else None
    gc.disable()  # a history is short; looking for cycles meanwhile costs a tenth of its time
    members_per_slice = group.MEMBERS_PER_SLICE
    world = World(plan, trace)
    try:
        if SLICES in plan.behaviours:
            group.MEMBERS_PER_SLICE = 1  # type: ignore[misc]
        world.run()
    except Exception as error:
        message = f"{type(error).__name__}: {error}" if str(error) else f"{type(error).__name__} without a word"
        return Verdict(plan, world.steps, violated(error), message, tuple(trace or ()))
    finally:
        group.MEMBERS_PER_SLICE = members_per_slice  # type: ignore[misc]
        gc.enable()
    return Verdict(plan, world.steps, trace=tuple(trace or ()))


def shrink(verdict: Verdict) -> Verdict:
    """A shorter history that violates the same invariant, with its trace: fewer behaviours, fewer clients, fewer steps."""
    best = verdict
    shrinking = True
    while shrinking:
        shrinking = False
        for plan in _smaller(best.plan):
            found = _fails_alike(plan, best)
            if found is not None:
                best = found
                shrinking = True
                break
    return run(best.plan, traced=True)


def _smaller(plan: Plan) -> list[Plan]:
    smaller = [plan.without(name) for name in plan.behaviours]
    if plan.groups > 1:
        smaller.append(replace(plan, groups=1))
    if plan.clients > 1:
        smaller.append(replace(plan, clients=plan.clients - 1))
    return smaller


def _fails_alike(plan: Plan, verdict: Verdict) -> Verdict | None:
    """The shortest of a few histories of a plan that fail as ``verdict`` does, if it is not much longer."""
    found = [
        other
        for reseed in range(MAX_RESEEDS)
        if (other := run(replace(plan, seed=plan.seed + reseed * 1_000_003, steps=min(plan.steps, verdict.steps))))
        and other.invariant == verdict.invariant
    ]
    return min(found, key=lambda other: other.steps, default=None)
