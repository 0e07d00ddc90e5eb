"""The loop's clock in whole milliseconds, the same for all that compare deadlines."""

from __future__ import annotations

import asyncio


def now_ms(loop: asyncio.AbstractEventLoop) -> int:
    """Milliseconds on the loop's clock, a microsecond early."""
    return whole_ms(loop.time())


def whole_ms(loop_s: float) -> int:
    """Seconds on the loop's clock as milliseconds, a microsecond early.

    ``1001 / 1000 * 1000`` is a little less than 1001 in floating point: without the microsecond a timer armed for 1001 ms
    would come up, find that it is 1000, and be armed again for the same moment.
    """
    return int(loop_s * 1000 + 0.001)
