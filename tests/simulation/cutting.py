"""Calls that are cancelled at one of their awaits, whichever it is."""

from __future__ import annotations

import asyncio
import types
from collections.abc import Coroutine, Generator
from random import Random
from typing import Any, TypeVar

T = TypeVar("T")

MOST_AWAITS = 6
"""Few calls of a client wait more often than this in one go."""


async def cut_short(random: Random, call: Coroutine[Any, Any, T], *, share: float = 0.5) -> tuple[bool, Any]:
    """Runs a call, which is cancelled with the chance ``share``: at a drawn one of its awaits, at once or a little later.

    Returns whether it came to its end, and its result.
    """
    if random.random() >= share:
        return True, await call
    at = int(random.random() * MOST_AWAITS)
    delay_s = random.choice((0.0, 0.0, random.random() * 0.01, random.random() * 0.5))
    cut = _Cut(at, delay_s)
    task = asyncio.create_task(cut.run(call))
    cut.task = task
    await asyncio.wait((task,))
    if task.cancelled():
        return False, None
    return True, task.result()


class _Cut:
    """Counts the awaits of a call and cancels its task at one."""

    def __init__(self, at: int, delay_s: float) -> None:
        self.task: asyncio.Task[Any]
        self._left = at
        self._delay_s = delay_s

    async def run(self, call: Coroutine[Any, Any, T]) -> T:
        """The call itself."""
        return await self._watched(call)

    @types.coroutine
    def _watched(self, call: Coroutine[Any, Any, T]) -> Generator[Any, Any, T]:
        sent: Any = None
        error: BaseException | None = None
        while True:
            try:
                waits_for = call.send(sent) if error is None else call.throw(error)
            except StopIteration as end:
                return end.value  # type: ignore[no-any-return]
            if self._left == 0 and self._delay_s:
                asyncio.get_running_loop().call_later(self._delay_s, self.task.cancel)
            elif self._left == 0:
                self.task.cancel()  # takes effect at this very await
            self._left -= 1
            error = None
            try:
                sent = yield waits_for
            except BaseException as thrown:  # the call decides what becomes of it
                error = thrown
