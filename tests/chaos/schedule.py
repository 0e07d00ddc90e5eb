"""Which faults come when: decided by a seed before the run begins."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from random import Random
from typing import Final

from tests.chaos import faults, group_faults
from tests.chaos.registry import FAULTS, Fault

MODULES: Final = (faults, group_faults)
"""Where faults are registered."""


@dataclass(frozen=True, slots=True)
class Step:
    """One fault of a schedule: when, which, whom (0 to 1), for how long."""

    at_s: float
    kind: str
    pick: float
    duration_s: float


def schedule(
    random: Random, length_s: float, kinds: Sequence[str] = (), known: Mapping[str, Fault] = FAULTS
) -> list[Step]:
    """A seeded schedule of ``kinds``, of those ``known``.

    Without them each run draws which kinds exist in it, so that rare combinations of few kinds come up too.
    """
    names = list(known)
    kinds = kinds or random.sample(names, random.randint(4, len(names)))
    steps: list[Step] = []
    at_s = 4.0
    while at_s < length_s - 2.0:
        kind = known[random.choice(kinds)]
        steps.append(Step(at_s, kind.name, random.random(), random.uniform(kind.low_s, kind.high_s)))
        at_s += random.choice((0.2, 1.0, 1.0, 1.0)) * random.uniform(1.0, 6.0)
    return steps
