"""How long something took, counted in buckets as Prometheus wants them. Pure: who observes knows the time."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence
from typing import Final, NamedTuple

REQUEST_SECONDS: Final = (0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0)
"""Upper bounds for what a client waits for, in seconds; syncs of the disk and turns of the loop fit in as well."""
REBALANCE_SECONDS: Final = (0.01, 0.05, 0.1, 0.5, 1.0, 3.0, 5.0, 10.0, 30.0, 60.0, 300.0)
"""Upper bounds for rebalances, in seconds."""


class Distribution(NamedTuple):
    """A histogram at one moment: upper bounds, how many values each bucket has (one more for what is above), their sum."""

    bounds: tuple[float, ...]
    counts: tuple[int, ...]
    total: float


class Histogram:
    """Counts values by their size; ``bounds`` are inclusive upper bounds, ascending."""

    __slots__ = ("bounds", "counts", "total")

    def __init__(self, bounds: Sequence[float] = REQUEST_SECONDS) -> None:
        self.bounds = tuple(bounds)
        self.counts = [0] * (len(self.bounds) + 1)
        self.total = 0.0

    def observe(self, value: float) -> None:
        """Counts one value."""
        self.counts[bisect_left(self.bounds, value)] += 1
        self.total += value

    @property
    def count(self) -> int:
        """How many values were counted."""
        return sum(self.counts)

    def now(self) -> Distribution:
        """The counts as they are."""
        return Distribution(self.bounds, tuple(self.counts), self.total)
