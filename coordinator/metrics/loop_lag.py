"""By how much the event loop is late: what every client of the daemon waits for beside its own request."""

from __future__ import annotations

import asyncio
from typing import Final

from coordinator.histogram import Histogram

_PAUSE_S: Final = 0.5


class LoopLag:
    """Asks the loop for a call twice a second until it is stopped, and counts by how much it comes late."""

    def __init__(self) -> None:
        self.seconds = Histogram()
        self._loop = asyncio.get_running_loop()
        self._due_s = self._loop.time() + _PAUSE_S
        self._timer = self._loop.call_at(self._due_s, self._called)

    def stop(self) -> None:
        """Asks no more."""
        self._timer.cancel()

    def _called(self) -> None:
        now_s = self._loop.time()
        self.seconds.observe(max(0.0, now_s - self._due_s))
        self._due_s = now_s + _PAUSE_S
        self._timer = self._loop.call_at(self._due_s, self._called)
