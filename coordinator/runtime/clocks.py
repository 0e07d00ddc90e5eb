"""Both clocks that decisions are given, read together and no more often than they change.

uvloop reads its clock once in a turn of the loop: what comes in one turn, such as the heartbeats of fifty members, is
decided at one instant, which need not be made for each. asyncio's own loop asks the system every time; so does this then.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from coordinator.clock import whole_ms
from coordinator.runtime.effects import Instant


class Clocks:
    """The clock of a loop, and that of the wall, which ``wall_ms`` reads in ms; ``now`` does when the loop's has moved."""

    def __init__(self, loop: asyncio.AbstractEventLoop, wall_ms: Callable[[], int]) -> None:
        self.wall_ms = wall_ms
        """What the clock of the wall shows."""
        self._loop_s = loop.time
        self._read_at_s: float | None = None
        self._now = Instant(0, 0)

    def now(self) -> Instant:
        """The time, as far as the loop knows."""
        loop_s = self._loop_s()
        if loop_s != self._read_at_s:
            self._read_at_s = loop_s
            self._now = Instant(whole_ms(loop_s), self.wall_ms())
        return self._now
