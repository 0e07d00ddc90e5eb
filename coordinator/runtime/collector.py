"""The cyclic garbage collector of the daemon's process, kept from stopping the loop.

Nearly everything in the daemon ends by its count of references; cycles are few and small. What Python's collector does by
itself is walk all objects again and again: a third of a second for a million offsets, in which no request is answered.
Nor does a low threshold bound what it walks at a time. It counts objects made less objects freed, wherever these were:
ten thousand members that put a new request in the place of an old one count for little and leave a hundred thousand
objects to walk.

- So the collector does nothing by itself. What was made in the last few ms is walked in a step of its own, about a ms long.
- What has survived its walk is moved out of the collector's sight (``gc.freeze``, which costs nothing).
- What one long step made, or a burst after a silence, is moved out of sight without a walk, which would be as long.
- So a cycle that dies later stays. When the objects out of sight have doubled since the last time, all are walked once; that
  bounds what dead cycles can take by what lives, and such a walk by the growth it follows.
"""

from __future__ import annotations

import gc
from collections.abc import Callable
from typing import Final

STEP_S: Final = 0.01
"""Seconds between walks while the daemon is busy."""

IDLE_STEP_S: Final = 0.5
"""The most seconds between walks while it is not."""

WALKED_CPU_S: Final = 0.015
"""What the process made in so many seconds of its time is walked; of more, nothing is."""

_PER_FREEZE: Final = 100
"""The least pause after a step, in times of what it took to move out of sight. That costs nothing, but in a Python without
the GIL, whose collector has no generations: there it walks all objects."""

_IDLE: Final = 0.05
"""The share of the time that a process works which is not busy."""

LEAST_FROZEN: Final = 2_000_000
"""Objects out of sight that are never worth a walk."""


class Collector:
    """Holds for the whole process between ``start`` and ``stop``.

    ``cpu_s`` tells the time in seconds that the process has worked.
    """

    def __init__(self, cpu_s: Callable[[], float], least_frozen: int = LEAST_FROZEN) -> None:
        self._cpu_s = cpu_s
        self._worked_s = 0.0
        self._pause_s = STEP_S
        self._was_enabled: bool | None = None
        self._least_frozen = self._limit = least_frozen

    def start(self) -> None:
        """Moves out of sight what there is; from now on only what is called here collects."""
        self._was_enabled = gc.isenabled()
        gc.disable()
        gc.collect()
        gc.freeze()
        self._worked_s = self._cpu_s()

    def stop(self) -> None:
        """Leaves the collector as it was."""
        if self._was_enabled is not None:
            gc.unfreeze()
            if self._was_enabled:
                gc.enable()
            self._was_enabled = None

    def step(self) -> float:
        """Walks what was made since the last step, if that is not too much; returns the seconds until the next is due."""
        worked_s = self._cpu_s() - self._worked_s
        if worked_s <= WALKED_CPU_S:
            gc.collect(0)
        walked_s = self._cpu_s()
        gc.freeze()
        self._worked_s = self._cpu_s()
        idle = worked_s < _IDLE * self._pause_s
        self._pause_s = min(2 * self._pause_s, IDLE_STEP_S) if idle else STEP_S
        return max(self._pause_s, _PER_FREEZE * (self._worked_s - walked_s))

    def settle(self) -> None:
        """What there is now, such as a million offsets that were just loaded, is there to stay."""
        gc.freeze()
        self._limit = max(self._least_frozen, 2 * gc.get_freeze_count())

    def collect_if_doubled(self) -> bool:
        """Walks all objects if those out of sight have doubled since the last time; returns whether it did."""
        if gc.get_freeze_count() < self._limit:
            return False
        gc.unfreeze()
        gc.collect()
        self.settle()
        return True
