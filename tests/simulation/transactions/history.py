"""Runs a history and gives a verdict; makes a failing one short."""

from __future__ import annotations

import gc
from dataclasses import dataclass, replace
from typing import Final

from tests.simulation.transactions.facts import THE_CORE, ViolationError
from tests.simulation.transactions.plan import Plan
from tests.simulation.transactions.world import World

MAX_RESEEDS: Final = 20
"""So many other seeds are tried for a shorter history that fails alike."""


@dataclass(frozen=True, slots=True)
class Verdict:
    """What became of a history. ``invariant`` is the one that failed, "" if all held."""

    plan: Plan
    steps: int
    invariant: str = ""
    message: str = ""
    trace: tuple[str, ...] = ()


def run(plan: Plan, *, traced: bool = False) -> Verdict:
    """Runs one history to its end or to the first invariant that fails."""
    trace: list[str] | None = [] if traced else None
    gc.disable()  # a history is short; looking for cycles meanwhile costs a tenth of its time
    world = World(plan, trace)
    try:
        world.run()
    except ViolationError as error:
        return Verdict(plan, world.steps, error.invariant, error.message, tuple(trace or ()))
    except (AssertionError, KeyError, AttributeError, IndexError) as error:
        return Verdict(plan, world.steps, THE_CORE, f"{type(error).__name__}: {error}", tuple(trace or ()))
    finally:
        gc.enable()
    return Verdict(plan, world.steps, trace=tuple(trace or ()))


def shrink(verdict: Verdict) -> Verdict:
    """A shorter history that violates the same invariant, with its trace: fewer behaviours, workloads and steps."""
    best = verdict
    shrinking = True
    while shrinking:
        shrinking = False
        smaller = [best.plan.without(name) for name in best.plan.behaviours]
        if len(best.plan.workloads) > 1:
            smaller += [replace(best.plan, workloads=(name,)) for name in best.plan.workloads]
        for plan in smaller:
            found = [
                other
                for reseed in range(MAX_RESEEDS)
                if (other := run(replace(plan, seed=plan.seed + reseed * 1_000_003))).invariant == verdict.invariant
            ]
            if found:
                best = min(found, key=lambda other: other.steps)
                shrinking = True
                break
    return run(best.plan, traced=True)
