"""A fair queue: many requests of one group wait for one another only, and a request of another group is served at once.

Ten thousand members of one group ask at the same moment, or are answered at the same moment: done in one go, that would keep
every other group waiting for half a second. So a bounded amount of work is done in one turn of the loop. What comes on top
of it is queued under a key, such as its group, and the keys take turns.

Work has a weight, for a request with thousands of partitions costs what hundreds of heartbeats do. Light work goes first.
Of heavy work one piece is done in a turn, when the light work has left time for it, or has had all the time of
``PATIENCE`` turns.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Hashable
from typing import Final

PER_TURN: Final = 64
"""Weight of the work in one turn of the loop. A weight of 1 is a request of about 40 µs, or an answer of about 20 µs."""

HEAVY: Final = 16
"""Work above this weight is heavy."""

PATIENCE: Final = 8
"""The most turns of the loop in which heavy work waits for light work."""

Work = Callable[[], bool | None]
"""Does one piece; True when there is more of it, which keeps its place before what came later under the same key."""


class FairQueue:
    """Work of one key is done in the order it came, each piece once."""

    def __init__(self, per_turn: int = PER_TURN) -> None:
        self._per_turn = per_turn
        self._done = 0
        self._queues: dict[Hashable, deque[tuple[Work, int]]] = {}
        self._light: deque[Hashable] = deque()  # keys, by the work that each has to do next
        self._heavy: deque[Hashable] = deque()
        self._since_heavy = 0
        self._turning = False

    def __len__(self) -> int:
        return sum(map(len, self._queues.values()))

    def try_acquire(self, key: Hashable, weight: int = 1) -> bool:
        """Whether work of this key and weight may be done at once; if so it counts as done."""
        if self._done >= self._per_turn or key in self._queues:
            return False
        self._done += weight
        if not self._turning:
            self._turn_later()
        return True

    def charge(self, weight: int) -> None:
        """Counts work of this turn of which the weight was not known before."""
        self._done += weight

    def put(self, key: Hashable, work: Work, weight: int = 1) -> None:
        """Queues ``work`` behind all of the same key; it is done in a later turn of the loop."""
        queue = self._queues.get(key)
        if queue is None:
            queue = self._queues[key] = deque()
            (self._light if weight <= HEAVY else self._heavy).append(key)
        queue.append((work, weight))
        if not self._turning:
            self._turn_later()

    async def acquire(self, key: Hashable, weight: int = PER_TURN) -> None:
        """Returns when there is time for a piece of this key's work, which follows at once; see ``put``."""
        turn = asyncio.get_running_loop().create_future()

        def go_on() -> None:
            if not turn.done():
                turn.set_result(None)

        self.put(key, go_on, weight)
        await turn

    def drain(self) -> None:
        """Does all queued work at once: the loop is about to end."""
        while self._light or self._heavy:
            self._do_next(self._light or self._heavy)

    def _turn_later(self) -> None:
        self._turning = True
        asyncio.get_running_loop().call_soon(self._turn)

    def _turn(self) -> None:
        self._turning = False
        self._done = 0
        if not self._light and not self._heavy:
            return
        self._turn_later()
        while self._light and self._done < self._per_turn:
            self._do_next(self._light)
        if self._heavy:
            self._since_heavy += 1
            if self._done < self._per_turn or self._since_heavy >= PATIENCE:
                self._since_heavy = 0
                self._do_next(self._heavy)

    def _do_next(self, order: deque[Hashable]) -> None:
        key = order.popleft()
        queue = self._queues[key]
        work, weight = queue[0]
        self._done += weight
        more = None
        try:
            more = work()
        finally:
            if not more:
                queue.popleft()  # only now: what its work brings about under the same key comes behind it
            if queue:
                (self._light if queue[0][1] <= HEAVY else self._heavy).append(key)
            else:
                del self._queues[key]
