"""What is collected for one answer: samples by metric, bounded, collected in slices between which requests are served."""

from __future__ import annotations

import asyncio
from typing import Final

from coordinator.histogram import Distribution
from coordinator.metrics.definitions import METRICS

Labels = tuple[str, ...]
Value = float | Distribution

_SLICE: Final = 500
"""Pieces of work of about 2 µs each that are done in one turn of the loop: a millisecond."""


class Snapshot:
    """Samples by metric and labels. Of a metric by group or partition at most ``max_series`` are kept; the first come in.

    Whoever collects goes through its subjects in an order that does not change, so that the same series are there each time.
    """

    def __init__(self, max_series: int) -> None:
        self.samples: dict[str, list[tuple[Labels, Value]]] = {name: [] for name in METRICS}
        self.left_out: dict[str, int] = {}
        self._max_series = max_series
        self._work = 0

    def add(self, name: str, value: Value, *labels: str) -> None:
        """One sample of a metric whose labels have few values."""
        self.samples[name].append((labels, value))

    def add_bounded(self, name: str, value: float, *labels: str) -> None:
        """One sample of a metric that has a series for each group or partition."""
        samples = self.samples[name]
        if len(samples) < self._max_series:
            samples.append((labels, value))
        else:
            self.left_out[name] = self.left_out.get(name, 0) + 1

    async def worked(self, pieces: int = 1) -> None:
        """Says that so much was done; lets others have their turn when it was enough for one."""
        self._work += pieces
        if self._work >= _SLICE:
            self._work = 0
            await asyncio.sleep(0)
