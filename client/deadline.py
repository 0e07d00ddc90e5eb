"""Deadlines: every wait of a client has one, and passes what is left of it on to the waits inside."""

from __future__ import annotations

import asyncio


class Deadline:
    """A point in time on the running loop's clock, ``timeout_ms`` from now."""

    __slots__ = ("_at", "_loop", "timeout_ms")

    def __init__(self, timeout_ms: float) -> None:
        self._loop = asyncio.get_running_loop()
        self.timeout_ms = timeout_ms
        self._at = self._loop.time() + timeout_ms / 1000

    def remaining_s(self) -> float:
        """Seconds left, never below zero."""
        return max(0.0, self._at - self._loop.time())

    def remaining_ms(self) -> int:
        """Whole milliseconds left, never below zero."""
        return int(self.remaining_s() * 1000)

    @property
    def passed(self) -> bool:
        """Whether the time is over."""
        return self._loop.time() >= self._at
