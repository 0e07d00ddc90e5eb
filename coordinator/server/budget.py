"""Bytes that requests may hold in memory, for the whole daemon.

A connection's own bounds do not help when there are ten thousand of them, or when the disk stalls while producers go on.
A request's bytes are taken from the budget when it arrives and given back when it is done with them; while the budget
is exhausted no connection is read, and what waits in the clients' sockets is the back-pressure they feel.
"""

from __future__ import annotations

from collections.abc import Callable


class ByteBudget:
    """Counts bytes against ``limit``. A single taker may exceed it, or a large request could never be served."""

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self.used = 0
        self._waiting: dict[Callable[[], None], None] = {}

    @property
    def exhausted(self) -> bool:
        """Whether nobody should take more for now."""
        return self.used >= self.limit

    def take(self, size: int) -> None:
        """Counts ``size`` bytes in."""
        self.used += size

    def give(self, size: int) -> None:
        """Counts ``size`` bytes out, and calls who waits if there is room again, in the order they came."""
        self.used -= size
        assert self.used >= 0, "more bytes were given back than taken"
        while self._waiting and not self.exhausted:
            wake = next(iter(self._waiting))
            del self._waiting[wake]
            wake()

    def when_there_is_room(self, wake: Callable[[], None]) -> None:
        """Calls ``wake`` once when there is room; asking again before changes nothing."""
        self._waiting.setdefault(wake)

    def forget(self, wake: Callable[[], None]) -> None:
        """``wake`` is not wanted any more."""
        self._waiting.pop(wake, None)
