"""The high watermark of one partition, and the callbacks that wait for it."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable

from coordinator.log_output import get_logger

log = get_logger()

DurableCallback = Callable[[Exception | None], None]


class HighWatermark:
    """Up to which offset records are acknowledged. It never falls.

    Callbacks run one after the other in the order of their offsets, those of one offset in the order they came; one that
    raises is logged and does not keep the others from running.
    """

    def __init__(self, offset: int) -> None:
        self.offset = offset
        self._waiters: deque[tuple[int, DurableCallback]] = deque()
        self._listeners: dict[int, Callable[[], None]] = {}
        self._next_listener = 0

    def when_reached(self, offset: int, callback: DurableCallback) -> None:
        """Calls back once the high watermark is at ``offset`` or beyond: now, if it is and no callback waits before."""
        waiters = self._waiters
        if offset <= self.offset and (not waiters or waiters[0][0] > offset):
            _call(callback, None)
        elif not waiters or waiters[-1][0] <= offset:
            waiters.append((offset, callback))
        else:  # rare: behind the last one that waits for as much or less
            place = len(waiters)
            while place and waiters[place - 1][0] > offset:
                place -= 1
            waiters.insert(place, (offset, callback))

    def on_advance(self, listener: Callable[[], None]) -> Callable[[], None]:
        """Calls ``listener`` after each move and each failure. Returns what removes it again."""
        key = self._next_listener
        self._next_listener += 1
        self._listeners[key] = listener

        def remove() -> None:
            self._listeners.pop(key, None)

        return remove

    def advance(self, offset: int) -> None:
        """Moves on, calls those that waited for it, then the listeners."""
        assert offset >= self.offset, f"the high watermark cannot fall from {self.offset} to {offset}"
        self.offset = offset
        waiters = self._waiters
        while waiters and waiters[0][0] <= self.offset:
            _call(waiters.popleft()[1], None)
        if self._listeners:
            self._tell_listeners()

    def fail(self, error: Exception) -> None:
        """Tells all that wait now that what they wait for will not come. Those that begin to wait meanwhile stay."""
        waiters, self._waiters = self._waiters, deque()
        for _, callback in waiters:
            _call(callback, error)
        self._tell_listeners()  # what waits for more has to look again: the log may be gone

    def _tell_listeners(self) -> None:
        for key, listener in list(self._listeners.items()):
            if key in self._listeners:  # an earlier listener may have removed it
                try:
                    listener()
                except Exception:
                    log.exception("high_watermark_listener_failed")


def _call(callback: DurableCallback, error: Exception | None) -> None:
    try:
        callback(error)
    except Exception:
        log.exception("durable_callback_failed")
