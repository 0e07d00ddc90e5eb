"""What simulations of pure cores share: the verdict about a history, shrinking, ablations, the command line."""

from __future__ import annotations

import argparse
import gc
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Final, Generic, Protocol, TypeVar

THE_CORE: Final = "the_core_keeps_its_assertions"
"""Named when the code itself fails."""
_LAST_LINES: Final = 80


class ViolationError(AssertionError):
    """An invariant does not hold."""

    def __init__(self, invariant: str, message: str) -> None:
        super().__init__(f"{invariant}: {message}")
        self.invariant = invariant
        self.message = message


class Seeded(Protocol):
    """A plan: everything in a history follows from it."""

    @property
    def seed(self) -> int: ...


P = TypeVar("P", bound=Seeded)


@dataclass(frozen=True, slots=True)
class Verdict(Generic[P]):
    """What became of a history. ``invariant`` is the one that failed, "" if all held."""

    plan: P
    steps: int
    invariant: str = ""
    message: str = ""
    trace: tuple[str, ...] = ()


class World(Protocol):
    """A history under way; ``run`` raises ``ViolationError``."""

    steps: int

    def run(self) -> None: ...


def judge(
    plan: P,
    make: Callable[[P, list[str] | None], World],
    *,
    traced: bool,
    failed: Callable[[Exception], str] = lambda _: THE_CORE,
) -> Verdict[P]:
    """Runs one history to its end or to the first invariant that fails.

    ``failed`` names the invariant that an exception stands for which is no ``ViolationError``.
    """
    trace: list[str] | None = [] if traced else None
    invariant = message = ""
    gc.disable()  # a history is short; looking for cycles meanwhile costs a tenth of its time
    try:
        world = make(plan, trace)
        try:
            world.run()
        except ViolationError as error:
            invariant, message = error.invariant, error.message
        except Exception as error:
            message = f"{type(error).__name__}: {error}" if str(error) else f"{type(error).__name__} without a word"
            invariant = failed(error)
    finally:
        gc.enable()
    return Verdict(plan, world.steps, invariant, message, tuple(trace or ()))


class Run(Protocol[P]):
    """Runs the history of a plan."""

    def __call__(self, plan: P, *, traced: bool = False) -> Verdict[P]: ...


def shrink(
    verdict: Verdict[P],
    run: Run[P],
    smaller: Callable[[Verdict[P]], Iterable[P]],
    reseeded: Callable[[P, int, int], P],
    reseeds: int = 20,
) -> Verdict[P]:
    """A shorter history that violates the same invariant, with its trace: fewer faults, and another seed if that helps.

    ``smaller`` gives the plans to try after the shortest history so far; ``reseeded`` gives one another seed, and at most as
    many steps as the history had that is to become shorter, and one.
    """
    best = verdict
    shrinking = True
    while shrinking:
        shrinking = False
        for plan in smaller(best):
            tried = (run(reseeded(plan, plan.seed + n * 1_000_003, verdict.steps + 1)) for n in range(reseeds))
            found = [other for other in tried if other.invariant == verdict.invariant]
            if found:
                best = min(found, key=lambda other: other.steps)
                shrinking = True
                break
    return run(best.plan, traced=True)


@dataclass(frozen=True, slots=True)
class Ablation:
    """A safeguard that can be switched off, and who sees it."""

    safeguard: str
    where: Any
    """The module, class or table whose attribute is replaced."""
    attribute: Any
    replace: Callable[[Any], Any]
    caught_by: tuple[str, ...]
    """One of these fails, whichever comes first in the seed that finds it."""
    behaviours: tuple[str, ...] = ()
    """What its histories have, and little else, where chance alone would take hundreds of them."""


@contextmanager
def switched_off(ablation: Ablation) -> Iterator[None]:
    """Runs the core without a safeguard."""
    where, name = ablation.where, ablation.attribute
    original = where[name] if isinstance(where, dict) else vars(where)[name]
    put = where.__setitem__ if isinstance(where, dict) else lambda key, value: setattr(where, key, value)
    put(name, ablation.replace(original))
    try:
        yield
    finally:
        put(name, original)


def first_failure(ablation: Ablation, plans: Iterable[P], run: Run[P]) -> tuple[int, Verdict[P]] | None:
    """How many histories it takes until an invariant fails, and the verdict; None if none fails."""
    with switched_off(ablation):
        for count, plan in enumerate(plans, 1):
            verdict = run(plan)
            if verdict.invariant:
                return count, verdict
    return None


def main(
    name: str,
    description: str | None,
    draw: Callable[[int, int], P],
    run: Run[P],
    make_short: Callable[[Verdict[P]], Verdict[P]],
    arguments: Sequence[str] | None = None,
) -> int:
    """The command line of a ring: histories until one fails, so many are done, or so many steps. Returns the exit code."""
    parser = argparse.ArgumentParser(prog=f"python -m {name}", description=description)
    parser.add_argument("--seed", type=int, default=0, help="the first seed (default: %(default)s)")
    parser.add_argument("--steps", type=int, default=1000, help="steps before the faults stop (default: %(default)s)")
    parser.add_argument("--histories", type=int, default=1, help="how many seeds, one after the other (default: 1)")
    parser.add_argument("--core-steps", type=int, default=0, help="as many seeds as make so many steps")
    parser.add_argument("--trace", action="store_true", help="print the trace of each history, also of one that holds")
    options = parser.parse_args(arguments)
    began, began_cpu, steps, histories = time.perf_counter(), time.process_time(), 0, 0
    failed: Verdict[P] | None = None
    while failed is None and (steps < options.core_steps or histories < options.histories):
        verdict = run(draw(options.seed + histories, options.steps), traced=options.trace)
        histories += 1
        steps += verdict.steps
        print("\n".join(verdict.trace), end="\n" if verdict.trace else "")
        if verdict.invariant:
            failed = verdict
    took, took_cpu = time.perf_counter() - began, time.process_time() - began_cpu
    print(f"{steps:,} steps in {took:.1f} s: {steps / took:,.0f} a second, {steps / took_cpu:,.0f} a second of CPU")
    if failed is None:
        print(f"all invariants held in {histories} histories from seed {options.seed}")
        return 0
    print(f"seed {failed.plan.seed}, step {failed.steps}: {failed.invariant}: {failed.message}\n{failed.plan}")
    short = make_short(failed)
    print(f"shrunk: {short.plan}, step {short.steps}: {short.message}")
    print("\n".join(short.trace[-_LAST_LINES:]))
    sys.stdout.flush()
    return 1
