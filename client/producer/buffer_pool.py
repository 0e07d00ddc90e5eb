"""The bound on what a producer holds in memory: bytes are reserved before a record is queued and given back afterwards."""

from __future__ import annotations

import asyncio
from collections import deque

from client.errors import ClosedError


class BufferPool:
    """A budget of ``capacity`` bytes shared by all records in flight.

    A call that finds no room waits, first come first served. Waiting is safe to cancel: a reservation that was granted to a
    cancelled waiter goes back to the budget.
    """

    __slots__ = ("_closed", "_limit", "_resuming", "_used", "_waiting", "capacity")

    def __init__(self, capacity: int) -> None:
        self.capacity = capacity
        self._used = 0
        self._limit = capacity
        """Up to which a call may reserve at once: -1 while others come before it, and of a pool that is closed."""
        self._waiting: deque[tuple[int, asyncio.Future[None]]] = deque()
        self._resuming = 0  # waiters that were granted room and have not run since
        self._closed = False

    @property
    def used(self) -> int:
        """Bytes reserved at the moment."""
        return self._used

    @property
    def waiting(self) -> int:
        """How many callers wait for room."""
        return len(self._waiting)

    def try_reserve(self, size: int) -> bool:
        """Reserves ``size`` bytes if there is room and no call came before; says whether it did.

        A call that was let in but has not run yet came before: records are queued in the order of the calls. A closed pool
        has no room.
        """
        used = self._used + size
        if used > self._limit:
            return False
        self._used = used
        return True

    async def reserve(self, size: int) -> None:
        """Reserves ``size`` bytes, waiting until there is room.

        Raises ``ClosedError`` when the pool is closed meanwhile, ``ValueError`` when ``size`` can never fit.
        """
        if size > self.capacity:
            raise ValueError(f"{size} bytes never fit into a buffer of {self.capacity}")
        if self._closed:
            raise ClosedError("the producer was stopped")
        if self.try_reserve(size):
            return
        granted: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        entry = (size, granted)
        self._waiting.append(entry)
        self._limit = -1
        try:
            await granted
        except asyncio.CancelledError:
            if granted.done() and not granted.cancelled() and granted.exception() is None:
                self._resuming -= 1
                self.release(size)
            else:
                self._forget(entry)
            raise
        self._resuming -= 1
        self._admit()  # callers that found room, but this one before them

    def release(self, size: int) -> None:
        """Gives ``size`` bytes back and admits calls that waited for them."""
        self._used -= size
        self._admit()

    def close(self, reason: str) -> None:
        """Fails every call that waits with ``ClosedError(reason)``; from now on none waits."""
        self._closed = True
        self._limit = -1
        waiting, self._waiting = self._waiting, deque()
        for _, granted in waiting:
            if not granted.done():
                granted.set_exception(ClosedError(reason))

    def _forget(self, entry: tuple[int, asyncio.Future[None]]) -> None:
        if entry in self._waiting:
            self._waiting.remove(entry)
            self._admit()  # a smaller reservation behind this one may fit now

    def _admit(self) -> None:
        self._grant()
        self._limit = -1 if self._waiting or self._resuming or self._closed else self.capacity

    def _grant(self) -> None:
        while self._waiting:
            size, granted = self._waiting[0]
            if not granted.done():
                if self._used + size > self.capacity:
                    return
                self._used += size
                self._resuming += 1
                granted.set_result(None)
            self._waiting.popleft()
