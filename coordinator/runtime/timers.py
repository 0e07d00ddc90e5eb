"""Named timers over one handle of the event loop.

Setting a timer again replaces it. Sessions are renewed at every heartbeat, so moving a deadline to later costs one
dictionary write: the queued entry stays and is queued again when it comes up early.

**A stall** is time in which the loop did not run: the process was stopped (SIGSTOP, a debugger, a frozen container), the
machine paused or was out of memory. What members sent meanwhile lies unread in the sockets, and some loops, such as uvloop,
look at timers before they look at sockets. So the timers that wait for a client are put off by as long as the stall lasted
and by ``READ_MS`` more, in which what had arrived is read. That holds for each setting of a timer three times at most:
however often a machine stalls, every wait has a bound.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Collection, Hashable, Mapping
from heapq import heapify, heappop, heappush
from itertools import islice
from typing import Final, Generic, NamedTuple, TypeVar

from coordinator.clock import now_ms
from coordinator.log_output import get_logger
from coordinator.runtime.effects import TimerName

Name = TypeVar("Name", bound=Hashable)

TICK_MS: Final = 250
"""How often the timers look at the clock at least, to tell a stall from time in which nothing happened."""

STALL_MS: Final = 250
"""A look that comes later than this is a stall."""

READ_MS: Final = 1_000
"""How long reading may take what arrived during a stall, from ten thousand members."""

_MAX_EXTENSIONS: Final = 3

_PER_TURN: Final = 64
"""Timers that fire in one turn of the loop: ten thousand sessions that end at once do not hold up the loop."""

_LOOKED_AT_PER_TURN: Final = 512
"""Entries that are looked at in one turn of the loop: ten thousand heartbeats may be due at once and no longer wait."""

_SET_PER_TURN: Final = 256
"""Timers of one decision that are set at once; of more, so many in each turn of the loop."""

_SLACK: Final = 32_768
"""Entries that count no more but stay in the heap: ten thousand timers that are cancelled and set anew cost little."""

log = get_logger()


class Timers(Generic[Name]):
    """Calls ``fire(name)`` once the loop's clock has reached the deadline set for ``name``, in ms.

    ``waits_for_others(name)`` tells which timers are put off by a stall: those that wait for a client.
    """

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        fire: Callable[[Name], None],
        waits_for_others: Callable[[Name], bool] = lambda name: False,
    ) -> None:
        self._loop = loop
        self._fire = fire
        self._waits_for_others = waits_for_others
        self._extensions: dict[Name, int] = {}  # how often a stall has put off a timer since it was set
        self._seen_ms = now_ms(loop)  # when the loop last ran, as far as the timers know
        self._firing = False
        self._due: deque[tuple[Name, int]] = deque()  # these fire as soon as there is time for them
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
        if self._extensions:
            self._extensions.pop(name, None)
        self._deadlines[name] = deadline_ms
        queued = self._queued.get(name)
        if queued is None or deadline_ms < queued:
            self._enqueue(name, deadline_ms)
            self._arm()

    def cancel(self, name: Name) -> None:
        """Takes a timer away; no error when there is none."""
        self._deadlines.pop(name, None)
        self._extensions.pop(name, None)
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
        self._due.clear()
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
        if self._handle is None:
            self._seen_ms = now_ms(self._loop)
        first = min(self._heap[0][0], self._seen_ms + TICK_MS)
        if self._handle is not None:
            if self._armed_for <= first:
                return
            self._handle.cancel()
        self._armed_for = first
        self._handle = self._loop.call_at(first / 1000, self._on_time)

    def _on_time(self) -> None:
        self._handle = None
        now = now_ms(self._loop)
        unseen_ms = now - self._seen_ms
        self._seen_ms = now
        if unseen_ms > TICK_MS + STALL_MS:
            self._put_off(unseen_ms)
        for _ in range(_LOOKED_AT_PER_TURN):
            if not self._heap or self._heap[0][0] > now:
                break
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
            self._due.append((name, deadline_ms))
        if not self._firing:
            self._fire_due()
        self._arm()

    def _fire_due(self) -> None:
        """Fires what has come up, in order and a few in a turn; one that was cancelled or set again meanwhile is not due."""
        for _ in range(min(_PER_TURN, len(self._due))):
            name, deadline_ms = self._due.popleft()
            current_ms = self._deadlines.get(name)
            if current_ms is None or name in self._queued:
                continue
            if current_ms != deadline_ms:
                self._enqueue(name, current_ms)  # put off by a stall
                continue
            del self._deadlines[name]
            self._extensions.pop(name, None)
            try:
                self._fire(name)
            except Exception:
                log.exception("timer_failed", timer=str(name))
        self._firing = bool(self._due)
        if self._firing:
            self._loop.call_soon(self._fire_due)
        else:
            self._arm()

    def _put_off(self, stall_ms: int) -> None:
        """The loop did not run for a while: requests that came meanwhile have not been read."""
        put_off = 0
        for name, deadline_ms in self._deadlines.items():
            if self._waits_for_others(name) and self._extensions.get(name, 0) < _MAX_EXTENSIONS:
                self._deadlines[name] = deadline_ms + stall_ms + READ_MS
                self._extensions[name] = self._extensions.get(name, 0) + 1
                put_off += 1
        if put_off:
            log.warning("stall_noticed", ms=stall_ms, timers_put_off=put_off)


TimerKey = tuple[str, int, TimerName]
"""A timer of a coordinator: its internal topic, the partition, and the name that the core gave it."""


class _Owner(NamedTuple):
    fire: Callable[[int, TimerName], None]
    waits_for_others: Collection[str]


class CoordinatorTimers(Timers[TimerKey]):
    """The timers of all coordinators of this node, in one wheel."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._owners: dict[str, _Owner] = {}
        super().__init__(loop, self._fire_at_owner, self._owner_waits)

    def serve(self, topic: str, fire: Callable[[int, TimerName], None], waits_for_others: Collection[str]) -> None:
        """Timers of this topic are told to ``fire(partition, name)``; a stall puts off the kinds ``waits_for_others``."""
        self._owners[topic] = _Owner(fire, waits_for_others)

    def _fire_at_owner(self, key: TimerKey) -> None:
        topic, partition, name = key
        self._owners[topic].fire(partition, name)

    def _owner_waits(self, key: TimerKey) -> bool:
        topic, _, name = key
        return name[0] in self._owners[topic].waits_for_others


class ShardTimers:
    """The timers of one partition's core."""

    def __init__(self, timers: CoordinatorTimers, topic: str, partition: int) -> None:
        self._timers = timers
        self._topic, self._partition = topic, partition
        self._set: dict[TimerName, None] = {}
        self._late: dict[TimerName, int | None] = {}
        self._loop = asyncio.get_running_loop()

    def __len__(self) -> int:
        return len(self._set) + len(self._late)

    def change(self, changes: Mapping[TimerName, int | None]) -> None:
        """Sets and cancels timers, many of them in later turns of the loop; a later change of one replaces what waits."""
        late = self._late
        if late:
            for name in changes:
                late.pop(name, None)
        if len(changes) > _SET_PER_TURN:
            if not late:
                self._loop.call_soon(self._change_late)
            late.update(changes)
            return
        topic, partition, is_set, timers = self._topic, self._partition, self._set, self._timers
        for name, deadline_ms in changes.items():
            if deadline_ms is None:
                is_set.pop(name, None)
                timers.cancel((topic, partition, name))
            else:
                is_set[name] = None
                timers.set((topic, partition, name), deadline_ms)

    def fired(self, name: TimerName) -> None:
        """One has come up."""
        self._set.pop(name, None)

    def cancel_all(self) -> None:
        """Takes all of them away."""
        for name in self._set:
            self._timers.cancel((self._topic, self._partition, name))
        self._set.clear()
        self._late.clear()

    def _change_late(self) -> None:
        late = self._late
        self.change({name: late.pop(name) for name in tuple(islice(late, _SET_PER_TURN))})
        if late:
            self._loop.call_soon(self._change_late)
