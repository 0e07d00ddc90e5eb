"""Bytes of answers that clients have not read: a bound for all together, and which clients give way when it is reached."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable
from typing import Generic, NamedTuple

from coordinator.server.budget import HeldBytes, HolderT


class UnreadAnswers(HeldBytes[HolderT]):
    """What connections hold of answers that their clients have not read yet, once that is more than a little, and of those
    that are being put together.

    The more is held, the less records an answer gets, down to the one batch that it needs to get anywhere; when there is no
    room for that either, it waits, behind those that wait already. ``on_pressed`` is called when answers wait or more is
    held than ``limit``: then clients that read too slowly have to give way (see ``SlowReaders``). An answer keeps its room
    until its last byte is sent.
    """

    def __init__(self, limit: int, on_pressed: Callable[[], None] = lambda: None) -> None:
        super().__init__(limit)
        self._on_pressed = on_pressed
        self._waiting: dict[asyncio.Event, int] = {}

    @property
    def pressed(self) -> bool:
        """Whether answers wait for room, or more is held than should be."""
        return self.held > self.limit or bool(self._waiting)

    def holders(self) -> tuple[HolderT, ...]:
        """Who holds something, in the order of the last change."""
        return tuple(self._by_holder)

    def holds(self, holder: HolderT, size: int) -> None:
        """See ``HeldBytes``."""
        super().holds(holder, size)
        self._wake_first()
        if self.held > self.limit:
            self._on_pressed()

    def room(self) -> int:
        """The most bytes of records that the next answer should have."""
        return max(0, self.limit - self.held) // 4

    async def until_room(self, size: int) -> None:
        """Returns once an answer of ``size`` bytes fits in and no other waits for longer; at once if nothing is held at all.

        The caller takes the room before it awaits anything else.
        """
        if not self._waiting and self.fits(size):
            return
        event = asyncio.Event()
        self._waiting[event] = size
        try:
            while next(iter(self._waiting)) is not event or not self.fits(size):
                self._on_pressed()
                event.clear()
                await event.wait()
        finally:
            del self._waiting[event]
            self._wake_first()

    def fits(self, size: int) -> bool:
        """Whether an answer of ``size`` bytes has room now."""
        return self.held + size <= self.limit or not self.held

    def _wake_first(self) -> None:
        for event, size in self._waiting.items():
            if self.fits(size):
                event.set()
            return


class Reading(NamedTuple):
    """How far a client is: bytes that it has taken since it connected, those that wait to be sent, and how many times its
    connection has filled up so far. Between two of those times it has read all but a little of what it was sent."""

    taken: int
    unsent: int
    fillings: int


class SlowReaders(Generic[HolderT]):
    """Finds clients that read their answers too slowly while others wait for room. Pure, told about each from time to time.

    Too slow is who takes less than ``least_bytes`` in ``grace_s`` seconds, or has not read an answer after ``answer_s``.
    """

    def __init__(self, grace_s: float, least_bytes: int, answer_s: float) -> None:
        self._grace_s = grace_s
        self._least_bytes = least_bytes
        self._answer_s = answer_s
        self._paces: dict[HolderT, _Pace] = {}

    def found(self, readings: Iterable[tuple[HolderT, Reading]], now_s: float) -> list[HolderT]:
        """Those that are too slow, largest unsent first; ``readings`` has one of each client that holds something."""
        before, self._paces = self._paces, {}
        late: list[tuple[int, HolderT]] = []
        for holder, reading in readings:
            pace = before.get(holder)
            if pace is None or not reading.unsent or reading.fillings != pace.fillings:
                pace = _Pace(reading.taken, now_s, reading.fillings, now_s)
            elif reading.taken - pace.taken >= self._least_bytes:
                pace = pace._replace(taken=reading.taken, since_s=now_s)
            self._paces[holder] = pace
            if now_s - pace.since_s >= self._grace_s or now_s - pace.answer_since_s >= self._answer_s:
                late.append((reading.unsent, holder))
        return [holder for _, holder in sorted(late, key=lambda entry: -entry[0])]


class _Pace(NamedTuple):
    """What a client had taken at a time, and since when it has been reading the same answer."""

    taken: int
    since_s: float
    fillings: int
    answer_since_s: float
