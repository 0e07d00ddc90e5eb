"""What the tests of every ring ask: a seed is a history, one that fails becomes short, a safeguard is missed."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable, Iterable
from contextlib import AbstractContextManager
from typing import Final, TypeVar

from tests.simulation.rings import Ablation, P, Run, Verdict

A = TypeVar("A", bound=Ablation)
SwitchedOff = Callable[[A], AbstractContextManager[None]]
FirstFailure = Callable[[A], tuple[int, Verdict[P]] | None]

HASH_SEEDS: Final = ("0", "1", "777")
REPLAYED: Final = (3, 4, 5)
REPLAYED_STEPS: Final = 400

_DIGEST: Final = """
import hashlib
from {ring}.history import run
from {ring}.plan import draw
text = "\\n".join(line for seed in {seeds} for line in run(draw(seed, {steps}), traced=True).trace)
print(len(text), hashlib.sha256(text.encode()).hexdigest())
"""


def check_invariants(ring: str, seeds: Iterable[int], steps: int, draw: Callable[[int, int], P], run: Run[P]) -> None:
    """Fails with the first history in which an invariant does, and says how to replay it."""
    for seed in seeds:
        verdict = run(draw(seed, steps))
        replay = f"python -m {ring} --seed {seed} --steps {steps}"
        assert not verdict.invariant, f"{verdict.invariant}: {verdict.message}; replay with: {replay}"


def check_replays(ring: str) -> None:
    """Fails if traces depend on the seed with which a process of Python hashes strings, or are too short to tell."""
    program = _DIGEST.format(ring=ring, seeds=REPLAYED, steps=REPLAYED_STEPS)
    seen = {
        subprocess.run(
            [sys.executable, "-c", program],
            env={**os.environ, "PYTHONHASHSEED": hash_seed},
            capture_output=True,
            check=True,
            text=True,
        ).stdout
        for hash_seed in HASH_SEEDS
    }
    assert len(seen) == 1, f"{ring}: the same seeds gave {sorted(seen)}"
    assert int(seen.pop().split()[0]) > 10_000, f"{ring}: the traces are too short to tell histories apart"


def check_tracing(plan: P, run: Run[P]) -> None:
    """Fails if a history goes another way when it is written down."""
    assert run(plan).steps == run(plan, traced=True).steps


def check_shrinking(
    ablation: A,
    switched_off: SwitchedOff[A],
    first_failure: FirstFailure[A, P],
    shrink: Callable[[Verdict[P]], Verdict[P]],
) -> Verdict[P]:
    """Fails unless a history that breaks an invariant without a safeguard becomes one that is no longer and breaks it too.

    Returns that one.
    """
    found = first_failure(ablation)
    assert found is not None
    _, verdict = found
    with switched_off(ablation):
        short = shrink(verdict)
    assert short.invariant == verdict.invariant
    assert short.steps <= verdict.steps
    return short


def check_missed(ablation: A, first_failure: FirstFailure[A, P]) -> Verdict[P]:
    """Fails unless one of the invariants that the ablation names breaks without its safeguard. Returns the history."""
    found = first_failure(ablation)
    assert found is not None, f"no history sees that {ablation.safeguard} is off"
    seeds, verdict = found
    print(f"without {ablation.safeguard}: {verdict.invariant} after {seeds} seeds: {verdict.message}")
    assert verdict.invariant in ablation.caught_by
    return verdict


def check_back_on(ablations: Iterable[A], switched_off: SwitchedOff[A], plan: P, run: Run[P]) -> None:
    """Fails if a safeguard that was off for a while leaves anything behind."""
    before = run(plan)
    for ablation in ablations:
        with switched_off(ablation):
            pass
    assert run(plan) == before
