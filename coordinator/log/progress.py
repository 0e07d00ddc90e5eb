"""How far something has come in a log, and what waits for it: a log's end on disk, a partition's high watermark."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable

from coordinator.log_output import get_logger

log = get_logger()

DurableCallback = Callable[[Exception | None], None]
"""Gets None once what it waits for is there, or the error that kept it from coming."""


class Progress:
    """An offset that rises, and falls only when the log itself is truncated.

    Callbacks run one after the other in the order of their offsets, those of one offset in the order they came; one that
    raises is logged and does not keep the others from running.
    """

    __slots__ = ("_listeners", "_waiters", "offset")

    def __init__(self, offset: int) -> None:
        self.offset = offset
        self._waiters: deque[tuple[int, DurableCallback, bool]] = deque()
        """Each with its offset, and whether ``give_up`` is about it."""
        self._listeners: dict[object, Callable[[], None]] = {}

    def when_reached(self, offset: int, callback: DurableCallback, may_give_up: bool = False) -> None:
        """Calls back once this is at ``offset`` or beyond: now, if it is and no callback waits before.

        With ``may_give_up`` it wants to be told when that will take long (see ``give_up``).
        """
        waiters = self._waiters
        if offset <= self.offset and (not waiters or waiters[0][0] > offset):
            _call_back(callback, None)
        elif not waiters or waiters[-1][0] <= offset:
            waiters.append((offset, callback, may_give_up))
        else:  # rare: behind the last one that waits for as much or less
            place = len(waiters)
            while place and waiters[place - 1][0] > offset:
                place -= 1
            waiters.insert(place, (offset, callback, may_give_up))

    def on_advance(self, listener: Callable[[], None]) -> Callable[[], None]:
        """Calls ``listener`` after each move and each failure. Returns what removes it again."""
        key = object()
        self._listeners[key] = listener

        def remove() -> None:
            self._listeners.pop(key, None)

        return remove

    def advance(self, offset: int) -> None:
        """Moves on, calls those that waited for it, then the listeners."""
        assert offset >= self.offset, f"what has come to offset {self.offset} cannot fall to {offset}"
        self.offset = offset
        waiters = self._waiters
        while waiters and waiters[0][0] <= self.offset:
            _call_back(waiters.popleft()[1], None)
        if self._listeners:
            self.tell_listeners()

    def rewind(self, offset: int, error: Exception) -> None:
        """The log was truncated to ``offset``: what waits for more than that will not come, and is told ``error``."""
        self.offset = min(self.offset, offset)
        self.fail(error)

    def fail(self, error: Exception, beyond: int = 0) -> None:
        """Tells all that wait now for more than ``beyond`` that it will not come. What begins to wait meanwhile stays."""
        waiters, self._waiters = self._waiters, deque()
        while waiters and waiters[0][0] <= beyond:
            self._waiters.append(waiters.popleft())
        for _, callback, _ in waiters:
            _call_back(callback, error)
        self.tell_listeners()  # what waits for more has to look again: the log may be gone

    @property
    def has_waiters(self) -> bool:
        """Whether a callback waits."""
        return bool(self._waiters)

    def give_up(self, error: Exception) -> None:
        """Tells ``error`` to all that wait now and may give up; the others go on waiting."""
        waiters = self._waiters
        self._waiters = deque(waiter for waiter in waiters if not waiter[2])
        for _, callback, may_give_up in waiters:
            if may_give_up:
                _call_back(callback, error)

    def hand_over(self, other: Progress) -> None:
        """What waits here, and who listens, does so at ``other`` from now on."""
        waiters, self._waiters = self._waiters, deque()
        for waiter in waiters:
            other.when_reached(*waiter)
        other._listeners.update(self._listeners)
        self._listeners = other._listeners  # what removes one finds it there

    def tell_listeners(self) -> None:
        """They are told without a move, as something else is there to be looked at."""
        for key, listener in list(self._listeners.items()):
            if key in self._listeners:  # an earlier listener may have removed it
                try:
                    listener()
                except Exception:
                    log.exception("progress_listener_failed")


def _call_back(callback: DurableCallback, error: Exception | None) -> None:
    try:
        callback(error)
    except Exception:
        log.exception("durable_callback_failed")
