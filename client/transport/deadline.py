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


def wait_s(timeout: float | None, timeout_ms: float | None) -> float | None:
    """How long a call may wait, in seconds, of an argument in seconds or one in milliseconds; None when neither is given.

    Lengths of time are given in milliseconds and their names end in ``_ms``. ``timeout`` of ``stop`` and ``flush`` is in
    seconds; they take ``timeout_ms`` as well. Raises ``TypeError`` for both at once or for what is no number,
    ``ValueError`` for what is no length of time.
    """
    if timeout is not None and timeout_ms is not None:
        raise TypeError(f"give timeout (seconds) or timeout_ms, not both: they are {timeout!r} and {timeout_ms!r}")
    if timeout is not None:
        return checked_wait("timeout", "seconds", timeout)
    return None if timeout_ms is None else checked_wait("timeout_ms", "milliseconds", timeout_ms) / 1000


def checked_wait(name: str, unit: str, value: object) -> float:
    """A length of time as given. Raises ``TypeError`` or ``ValueError`` naming the argument and its unit for others."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise TypeError(f"{name} must be a number of {unit} or None, not {value!r}")
    if not value >= 0:
        raise ValueError(f"{name} is {value!r}; it must be a number of {unit} from 0")
    return value
