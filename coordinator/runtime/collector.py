"""The cyclic garbage collector of the daemon's process, kept from stopping the loop.

Nearly everything in the daemon ends by its count of references; cycles are few and small. What Python's collector does by
itself is walk all objects again and again: a third of a second for a million offsets, in which nobody is answered.

- The young are walked in small portions, a few ms each.
- What has survived two walks is moved out of the collector's sight (``gc.freeze``, which costs nothing).
- So a cycle that dies later stays. When the objects out of sight have doubled since the last time, all are walked once; that
  bounds what dead cycles can take by what lives, and such a walk by the growth it follows.
"""

from __future__ import annotations

import gc
from collections.abc import Mapping
from typing import Any, Final

THRESHOLDS: Final = (20_000, 4, 1_000_000)
"""How many more objects there must be for a walk of the young ones, and how many such walks for one of those that survived
them; the last is never reached."""

LEAST_FROZEN: Final = 2_000_000
"""Objects out of sight that are never worth a walk."""


class Collector:
    """Holds for the whole process between ``start`` and ``stop``."""

    def __init__(self, least_frozen: int = LEAST_FROZEN) -> None:
        self._before: tuple[int, int, int] | None = None
        self._least_frozen = self._limit = least_frozen

    def start(self) -> None:
        """Moves out of sight what there is, and collects in small portions from now on."""
        self._before = gc.get_threshold()
        gc.collect()
        gc.freeze()
        gc.set_threshold(*THRESHOLDS)
        gc.callbacks.append(self._on_collection)

    def stop(self) -> None:
        """Leaves the collector as it was."""
        if self._before is not None:
            gc.callbacks.remove(self._on_collection)
            gc.set_threshold(*self._before)
            gc.unfreeze()
            self._before = None

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

    @staticmethod
    def _on_collection(phase: str, info: Mapping[str, Any]) -> None:
        if phase == "stop" and info["generation"] == 1:
            gc.freeze()
