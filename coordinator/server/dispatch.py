"""From a request to the handler of its kind.

A handler is a function that takes a ``Call``. It runs at once, in the order requests came in on the connection, up to its
decision; what must wait goes on in a task of the ``Tasks`` below, which end with the daemon.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from coordinator.log_output import get_logger
from coordinator.server.connection import Call
from protocol.errors import ErrorCode
from protocol.messages import REQUESTS, Request

log = get_logger()

Handler = Callable[[Call], None]


class Dispatcher:
    """Holds one handler a request class. Raises ``ValueError`` at start when one is missing."""

    def __init__(self, handlers: Mapping[type[Request], Handler]) -> None:
        missing = [request.__name__ for request in REQUESTS.values() if request not in handlers]
        if missing:
            raise ValueError(f"no handler for {', '.join(missing)}")
        self._handlers = dict(handlers)

    def handle(self, call: Call) -> None:
        """Passes a call to its handler."""
        self._handlers[type(call.request)](call)


class Tasks:
    """Requests that wait for something. Their number is bounded by the connections' own bounds."""

    def __init__(self) -> None:
        self.stopping = False
        """Set when the daemon stops: what waits answers with what it has."""
        self._tasks: dict[asyncio.Task[None], None] = {}
        self._waiting: dict[asyncio.Event, None] = {}

    def start(self, call: Call, work: Coroutine[Any, Any, None]) -> None:
        """Runs ``work`` for ``call``. It is cancelled when the connection closes."""
        task = asyncio.create_task(self._guard(call, work), name=f"cohort-{type(call.request).__name__}")
        self._tasks[task] = None
        task.add_done_callback(lambda done: self._tasks.pop(done, None))
        call.on_abandon = task.cancel

    def start_change(self, call: Call, work: Coroutine[Any, Any, None]) -> None:
        """Runs ``work`` for ``call`` to its end, also when the client hangs up."""
        self.start(call, work)
        call.on_abandon = None

    @contextmanager
    def long_poll(self) -> Iterator[asyncio.Event]:
        """An event to wait for, which is also set when the daemon stops."""
        event = asyncio.Event()
        if self.stopping:
            event.set()
        self._waiting[event] = None
        try:
            yield event
        finally:
            del self._waiting[event]

    async def close(self, timeout_s: float) -> None:
        """Ends every long poll with an answer, waits for the rest up to ``timeout_s`` seconds, and cancels what is left."""
        self.stopping = True
        for event in self._waiting:
            event.set()
        if self._tasks:
            await asyncio.wait(tuple(self._tasks), timeout=timeout_s)
        tasks = tuple(self._tasks)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def _guard(self, call: Call, work: Coroutine[Any, Any, None]) -> None:
        try:
            await work
        except asyncio.CancelledError:
            raise
        except Exception:
            log.exception(
                "a request failed unexpectedly", request=type(call.request).__name__, peer=call.connection.peer
            )
            call.refuse(ErrorCode.UNKNOWN_SERVER_ERROR, "the daemon failed unexpectedly; its log has the cause")
