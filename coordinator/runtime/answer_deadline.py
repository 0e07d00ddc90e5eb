"""How long an answer of a replicated coordinator waits until what it depends on is committed.

Followers that do not fetch keep everything from being committed, for as long as that takes. A client is told after
``ANSWER_S`` that the outcome is not known yet; what was decided stays, and is committed when the followers have it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable
from typing import Final

from coordinator.runtime.effects import Effects, ReplyToken

ANSWER_S: Final = 5.0
"""How long an answer waits."""

_PAUSE_S: Final = 0.25
"""The least time between two looks for answers that have waited for too long."""


class AnswerDeadline:
    """``waiting`` gives all effects that wait, in their order; ``give_up`` answers those who have waited for too long."""

    def __init__(
        self, waiting: Callable[[], Iterable[list[Effects]]], give_up: Callable[[list[ReplyToken]], None]
    ) -> None:
        self._waiting = waiting
        self._give_up = give_up
        self._loop = asyncio.get_running_loop()
        self._timer: asyncio.TimerHandle | None = None

    def begin(self, effects: Effects) -> None:
        """These begin to wait."""
        effects.waits_since_s = self._loop.time()
        if self._timer is None:
            self._timer = self._loop.call_later(ANSWER_S, self._look)

    def _look(self) -> None:
        self._timer, now = None, self._loop.time()
        late: list[ReplyToken] = []
        for some in self._waiting():
            overdue = 0
            for effects in some:
                if (due_s := effects.waits_since_s + ANSWER_S) > now:
                    self._timer = self._loop.call_at(max(due_s, now + _PAUSE_S), self._look)
                    break
                overdue += 1
                late += [token for token, _, _ in effects.given]
                effects.given.clear()
            some[:overdue] = [effects for effects in some[:overdue] if effects.orders is not None]  # these still hold
            if self._timer is not None:
                break
        if late:
            self._give_up(late)
