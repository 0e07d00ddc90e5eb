"""Bytes that requests may hold in memory, for the whole daemon: what decoding makes of them, not what travelled.

A connection's own bounds do not help when there are ten thousand of them, or when the disk stalls while producers go on.
A request's bytes are taken from the budget when it arrives and given back when it is done with them; while the budget
is exhausted no connection is read, and what waits in the clients' sockets is the back-pressure they feel.

What has not arrived in full cannot wait like that: if half frames used up the budget and nobody was read any more, none
of them would ever be complete. They have a bound of their own, and whoever holds most gives way.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable
from typing import Generic, TypeVar

HolderT = TypeVar("HolderT")


class ByteBudget:
    """Counts bytes against ``limit``. A single taker may exceed it, or a large request could never be served."""

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self.used = 0
        self.on_exhausted: Callable[[], None] = lambda: None
        """Called when the last of it is taken: what only waits should end."""
        self._waiting: dict[Callable[[], None], None] = {}

    @property
    def exhausted(self) -> bool:
        """Whether nobody should take more for now."""
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


class UnreadAnswers(HeldBytes[HolderT]):
    """What connections hold of answers that their clients have not read yet, once that is more than a little, and of those
    that are being put together.

    The more is held, the less records an answer gets, down to the one batch that it needs to get anywhere; when there is no
    room for that either, it waits. ``on_pressed`` is called when answers wait or more is held than ``limit``: who has read
    nothing for a while has to give way then (see ``Relief``). A client that reads slowly is not closed,
    and its answer keeps its room until the last byte is sent.
    """

    def __init__(self, limit: int, on_pressed: Callable[[], None] = lambda: None) -> None:
        super().__init__(limit)
        self._on_pressed = on_pressed
        self._waiting: dict[asyncio.Event, int] = {}

    @property
    def pressed(self) -> bool:
        """Whether answers wait for room, or more is held than should be."""
        return self.held > self.limit or any(not event.is_set() for event in self._waiting)

    def holders(self) -> tuple[HolderT, ...]:
        """Who holds something, in the order of the last change."""
        return tuple(self._by_holder)

    def holds(self, holder: HolderT, size: int) -> None:
        """See ``HeldBytes``."""
        super().holds(holder, size)
        for event, wanted in self._waiting.items():
            if self.fits(wanted):
                event.set()
        if self.held > self.limit:
            self._on_pressed()

    def room(self) -> int:
        """The most bytes of records that the next answer should have."""
        return max(0, self.limit - self.held) // 4

    async def until_room(self, size: int) -> None:
        """Returns once an answer of ``size`` bytes fits in, at once if nothing is held at all."""
        while not self.fits(size):
            event = asyncio.Event()
            self._waiting[event] = size
            try:
                self._on_pressed()
                await event.wait()
            finally:
                del self._waiting[event]

    def fits(self, size: int) -> bool:
        """Whether an answer of ``size`` bytes has room now."""
        return self.held + size <= self.limit or not self.held


class Relief(Generic[HolderT]):
    """Finds out who reads nothing of what it asked for; pure, told what each holds from time to time."""

    def __init__(self, grace_s: float) -> None:
        self._grace_s = grace_s
        self._seen: dict[HolderT, tuple[int, float]] = {}

    def stalled(self, unsent: Iterable[tuple[HolderT, int]], now_s: float) -> list[HolderT]:
        """Those of whom nothing has been read for the time of grace, of whom most is unsent first."""
        before, self._seen = self._seen, {}
        for holder, size in unsent:
            least, since_s = before.get(holder, (size, now_s))
            self._seen[holder] = (size, now_s) if size < least else (size, since_s)
        late = [(size, holder) for holder, (size, since_s) in self._seen.items() if now_s - since_s >= self._grace_s]
        return [holder for _, holder in sorted(late, key=lambda entry: -entry[0])]
