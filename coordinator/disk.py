"""Blocking disk calls, taken off the event loop."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import ParamSpec, TypeVar

from coordinator.storage import Storage

P = ParamSpec("P")
T = TypeVar("T")


class Disk:
    """A storage and the bounded pool of threads that its blocking calls run in.

    ``threads`` bounds how many calls run at once; further ones wait their turn in order of arrival. Each waiting call
    belongs to a coroutine that awaits it, so whoever bounds those bounds the queue.
    """

    def __init__(self, storage: Storage, threads: int = 4) -> None:
        self.storage = storage
        self._executor = ThreadPoolExecutor(max_workers=threads, thread_name_prefix="disk")

    async def run(self, function: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        """Calls ``function`` in the pool and returns what it returns or raises what it raises.

        A call that has been handed over always runs to its end. When the caller is cancelled meanwhile, the cancellation
        is delivered once the call is over and its result is dropped: after ``run`` no thread touches the arguments any
        more, so files can be closed and state rolled back safely. Who must know the result of a cancelled call lets
        ``function`` keep it in an object of its own.
        """
        loop = asyncio.get_running_loop()
        future = loop.run_in_executor(self._executor, lambda: function(*args, **kwargs))
        cancelled: asyncio.CancelledError | None = None
        while not future.done():
            try:
                await asyncio.wait((future,))
            except asyncio.CancelledError as error:
                cancelled = error
        if cancelled is not None:
            raise cancelled from future.exception()
        return future.result()

    def close(self) -> None:
        """Takes no further calls; threads end when their last call does. Call it when everything using it is closed."""
        self._executor.shutdown(wait=False)
