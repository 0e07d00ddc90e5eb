"""Both clocks are read together, and no more often than the loop's moves."""

from __future__ import annotations

import asyncio
from itertools import count

from coordinator.runtime.clocks import Clocks
from coordinator.runtime.effects import Instant


class StillLoop(asyncio.SelectorEventLoop):
    """A loop whose clock stands where it is put, as uvloop's does in a turn."""

    now_s = 0.0

    def time(self) -> float:
        """See ``asyncio.BaseEventLoop``."""
        return self.now_s


def test_what_is_decided_while_the_loop_s_clock_stands_still_is_decided_at_one_instant() -> None:
    loop = StillLoop()
    try:
        walls = count(5_000)
        clocks = Clocks(loop, lambda: next(walls))
        loop.now_s = 1.001
        first = clocks.now()
        assert first == Instant(1_001, 5_000), "not 1,000, as 1001 / 1000 * 1000 is in floating point"
        assert clocks.now() is first
        loop.now_s = 1.0015
        assert clocks.now() == Instant(1_001, 5_001)
        loop.now_s = 0.0
        assert Clocks(loop, clocks.wall_ms).now() == Instant(0, 5_002), "also where the loop begins at 0"
    finally:
        loop.close()
