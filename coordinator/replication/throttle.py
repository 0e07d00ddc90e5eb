"""A token bucket: what replicas that are not in sync may copy in a second."""

from __future__ import annotations


class Throttle:
    """Allows ``bytes_per_s`` on average, and what a second allows at once; -1 allows everything.

    What is copied is known only afterwards, so that the bucket may fall below zero: then nothing is asked for until it has
    filled up again.
    """

    def __init__(self, bytes_per_s: int, now_s: float) -> None:
        self._rate = bytes_per_s
        self._left = float(bytes_per_s)
        self._filled_s = now_s

    @property
    def is_on(self) -> bool:
        """Whether there is a bound at all."""
        return self._rate > 0

    def spend(self, size: int, now_s: float) -> None:
        """So many bytes were copied."""
        if self.is_on:
            self._fill(now_s)
            self._left -= size

    def wait_s(self, now_s: float) -> float:
        """Seconds until something may be asked for; 0 when it may be now."""
        if not self.is_on:
            return 0.0
        self._fill(now_s)
        return max(0.0, -self._left / self._rate)

    def _fill(self, now_s: float) -> None:
        self._left = min(self._rate, self._left + (now_s - self._filled_s) * self._rate)
        self._filled_s = now_s
