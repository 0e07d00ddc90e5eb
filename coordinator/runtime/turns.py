"""Sharing the event loop fairly: a crowd waits for its turn, whoever comes alone is served at once.

Ten thousand members of one group ask at the same moment, or are answered at the same moment: done in one go, that would keep
every other group waiting for half a second. So a bounded number of pieces of work is done in one turn of the loop. What
comes on top of it waits under a key, such as its group, and the keys take turns: a crowd waits for itself only.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Hashable
from typing import Final

PER_TURN: Final = 64
"""Pieces of work in one turn of the loop: requests of about 40 µs, or answers of about 20 µs."""

Work = Callable[[], bool | None]
"""Does one piece; True when there is more of it, which keeps its place before what came later under the same key."""


class Turns:
    """Work of one key is done in the order it came, each piece once."""

    def __init__(self, per_turn: int = PER_TURN) -> None:
        self._per_turn = per_turn
        self._done = 0
        self._queues: dict[Hashable, deque[Work]] = {}
        self._order: deque[Hashable] = deque()
        self._turning = False

    def __len__(self) -> int:
        return sum(map(len, self._queues.values()))

    def free(self, key: Hashable) -> bool:
        """Whether work of this key may be done at once; if so it counts as done."""
        if self._done >= self._per_turn or key in self._queues:
            return False
        self._done += 1
        if not self._turning:
            self._turn_later()
        return True

    def wait(self, key: Hashable, work: Work) -> None:
        """Does ``work`` behind all that waits under the same key, in some later turn."""
        queue = self._queues.get(key)
        if queue is None:
            queue = self._queues[key] = deque()
            self._order.append(key)
        queue.append(work)
        if not self._turning:
            self._turn_later()

    def finish(self) -> None:
        """Does all that waits, at once: the loop is about to end."""
        while self._order:
            self._do_next()

    def _turn_later(self) -> None:
        self._turning = True
        asyncio.get_running_loop().call_soon(self._turn)

    def _turn(self) -> None:
        self._turning = False
        self._done = 0
        if not self._order:
            return
        self._turn_later()
        while self._order and self._done < self._per_turn:
            self._done += 1
            self._do_next()

    def _do_next(self) -> None:
        key = self._order.popleft()
        queue = self._queues[key]
        more = None
        try:
            more = queue[0]()
        finally:
            if not more:
                queue.popleft()  # only now: what its work brings about under the same key comes behind it
            if queue:
                self._order.append(key)
            else:
                del self._queues[key]
