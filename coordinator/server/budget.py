"""Bytes that requests may hold in memory, for the whole daemon: what decoding makes of them, not what travelled.

A connection's own bounds do not help when there are ten thousand of them, or when the disk stalls while producers go on.
A request's bytes are taken from the budget when it arrives and given back when it is done with them; while the budget
is exhausted no connection is read, and what waits in the clients' sockets is the back-pressure they feel.

What has not arrived in full cannot wait like that: if half frames used up the budget and no connection was read any more,
none of them would ever be complete. They have a bound of their own, and the largest holder gives way.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Generic, TypeVar

HolderT = TypeVar("HolderT")


class ByteBudget:
    """Counts bytes against ``limit``. A single taker may exceed it, or a large request could never be served.

    ``take`` and ``give`` tell others that the limit is reached or that there is room again. While there is nothing to tell
    they only count in ``used``, which a connection then does itself: it would call them twice for each request.
    """

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self.used = 0
        self.on_exhausted: Callable[[], None] = lambda: None
        """Called when the last of it is taken: what only waits should end."""
        self.waiting: dict[Callable[[], None], None] = {}
        """What is called when there is room again."""

    @property
    def exhausted(self) -> bool:
        """Whether no connection should take more for now."""
        return self.used >= self.limit

    def take(self, size: int) -> None:
        """Counts ``size`` bytes in."""
        was_exhausted = self.used >= self.limit
        self.used += size
        if self.used >= self.limit and not was_exhausted:
            self.on_exhausted()

    def give(self, size: int) -> None:
        """Counts ``size`` bytes out, and calls who waits if there is room again, in the order they came."""
        self.used -= size
        assert self.used >= 0, "more bytes were given back than taken"
        while self.waiting and not self.exhausted:
            wake = next(iter(self.waiting))
            del self.waiting[wake]
            wake()

    def when_there_is_room(self, wake: Callable[[], None]) -> None:
        """Calls ``wake`` once when there is room; asking again before changes nothing."""
        self.waiting.setdefault(wake)

    def forget(self, wake: Callable[[], None]) -> None:
        """``wake`` is not wanted any more."""
        self.waiting.pop(wake, None)


class HeldBytes(Generic[HolderT]):
    """Counts the bytes that each holder has, against ``limit``."""

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self.held = 0
        self._by_holder: dict[HolderT, int] = {}

    def holds(self, holder: HolderT, size: int) -> None:
        """``holder`` has ``size`` bytes now; 0 when none, or when it is gone."""
        self.held += size - self._by_holder.pop(holder, 0)
        if size:
            self._by_holder[holder] = size


class Arrivals(HeldBytes[HolderT]):
    """What connections hold of requests that are half there, or there and not taken yet.

    ``give_way`` is called with the holder of most bytes while all together hold more than ``limit``; its bytes do not count
    from then on. The last one left is let alone: one frame has a bound of its own.
    """

    def __init__(self, limit: int, give_way: Callable[[HolderT], None]) -> None:
        super().__init__(limit)
        self._give_way = give_way

    def holds(self, holder: HolderT, size: int) -> None:
        """See ``HeldBytes``."""
        super().holds(holder, size)
        while self.held > self.limit and len(self._by_holder) > 1:
            largest = max(self._by_holder, key=self._by_holder.__getitem__)
            self.held -= self._by_holder.pop(largest)
            self._give_way(largest)
