"""Named timers over one handle of the event loop.

Setting a timer again replaces it. Sessions are renewed at every heartbeat, so moving a deadline to later costs one
dictionary write: the queued entry stays and is queued again when it comes up early.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Hashable
from heapq import heapify, heappop, heappush
from typing import Final, Generic, TypeVar

from coordinator.log_output import get_logger
from coordinator.runtime.clock import now_ms

Name = TypeVar("Name", bound=Hashable)

_SLACK: Final = 32_768
"""Entries that count no more but stay in the heap: a crowd that cancels its timers and sets them anew costs little."""

log = get_logger()


class Timers(Generic[Name]):
    """Calls ``fire(name)`` once the loop's clock has reached the deadline set for ``name``, in ms."""

    def __init__(self, loop: asyncio.AbstractEventLoop, fire: Callable[[Name], None]) -> None:
        self._loop = loop
        self._fire = fire
        self._deadlines: dict[Name, int] = {}
        self._queued: dict[Name, int] = {}  # the entry of each name in the heap that counts
        self._heap: list[tuple[int, int, Name]] = []
        self._sequence = 0
        self._handle: asyncio.TimerHandle | None = None
        self._armed_for = 0
        self._closed = False

    def __len__(self) -> int:
        return len(self._deadlines)

    def set(self, name: Name, deadline_ms: int) -> None:
        """Sets or replaces a timer."""
        self._deadlines[name] = deadline_ms
        queued = self._queued.get(name)
        if queued is None or deadline_ms < queued:
            self._enqueue(name, deadline_ms)
            self._arm()

    def cancel(self, name: Name) -> None:
        """Takes a timer away; no error when there is none."""
        self._deadlines.pop(name, None)
        if len(self._heap) > 2 * len(self._deadlines) + _SLACK:
            # Entries of cancelled timers would stay until their time comes, which can be half an hour.
            self._heap = [entry for entry in self._heap if entry[2] in self._deadlines]
            heapify(self._heap)
            self._queued = {name: queued for name, queued in self._queued.items() if name in self._deadlines}

    def close(self) -> None:
        """Fires nothing any more."""
        self._closed = True
        self._deadlines.clear()
        self._queued.clear()
        self._heap.clear()
        if self._handle is not None:
            self._handle.cancel()
            self._handle = None

    def _enqueue(self, name: Name, deadline_ms: int) -> None:
        self._queued[name] = deadline_ms
        self._sequence += 1
        heappush(self._heap, (deadline_ms, self._sequence, name))

    def _arm(self) -> None:
        if self._closed or not self._heap:
            return
        first = self._heap[0][0]
        if self._handle is not None:
            if self._armed_for <= first:
                return
            self._handle.cancel()
        self._armed_for = first
        self._handle = self._loop.call_at(first / 1000, self._on_time)

    def _on_time(self) -> None:
        self._handle = None
        now = now_ms(self._loop)
        due: list[Name] = []
        while self._heap and self._heap[0][0] <= now:
            queued_ms, _, name = heappop(self._heap)
            if self._queued.get(name) != queued_ms:
                continue  # replaced by an earlier entry, which has come up already
            del self._queued[name]
            deadline_ms = self._deadlines.get(name)
            if deadline_ms is None:
                continue  # cancelled
            if deadline_ms > now:
                self._enqueue(name, deadline_ms)  # moved to later meanwhile
                continue
            del self._deadlines[name]
            due.append(name)
        for name in due:
            try:
                self._fire(name)
            except Exception:
                log.exception("a timer failed; the others go on", timer=str(name))
        self._arm()
