"""A seed is a history: what the tests of every ring ask of its seeds, and the command that replays one that fails."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable, Iterable
from typing import Final

from tests.simulation.rings import P, Run

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
