"""Server-sent events: a view that is sent again whenever it has changed.

Nothing is queued for a browser that reads slowly: a stream looks at the node, sends what it sees, and looks again when that
has been taken. After each look it rests 300 times as long as the look had the event loop, so that one stream takes a third
of a percent of a core, however much there is to see; and so many streams are open at once, for so long.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from typing import Any, Final, Protocol

from coordinator.web.view import Pace, ViewError

MAX_STREAMS: Final = 16
STREAM_S: Final = 600.0
"""After this time a stream ends; a browser that is still there connects anew."""
LOOK_S: Final = 1.0
"""Pause between two looks, at least."""
REST: Final = 300
HASTE: Final = 20
"""By so much the rest is shorter when a group rebalances that is looked at."""
MAX_REST_S: Final = 60.0
SEND_S: Final = 10.0
"""A browser that does not take an event within this time is gone."""
QUIET_S: Final = 15.0
"""After so long without an event a comment is sent, which shows whether the browser is still there."""

Look = Callable[[Pace], Awaitable[dict[str, Any] | None]]
"""Gives what is to be sent, or None when there is nothing new."""


class Sink(Protocol):
    """What a stream writes to; ``write`` returns when there is room for more."""

    async def write(self, data: bytes) -> None:
        """Sends bytes. Raises ``ConnectionError`` when the browser is gone."""


class Streams:
    """All that are open."""

    def __init__(self) -> None:
        self._open: set[asyncio.Task[Any]] = set()
        self._closed = False

    @property
    def count(self) -> int:
        """How many are open."""
        return len(self._open)

    @contextmanager
    def place(self) -> Iterator[None]:
        """One of the places for streams, for the request that runs. Raises ``ViewError`` when there is none left."""
        if len(self._open) >= MAX_STREAMS or self._closed:
            raise ViewError(503, f"{len(self._open)} pages are open and kept up to date; close one, or try again later")
        task = asyncio.current_task()
        assert task is not None, "a stream is a request's task"
        self._open.add(task)
        try:
            yield
        finally:
            self._open.discard(task)

    async def close(self) -> None:
        """Ends all of them."""
        self._closed = True
        tasks = tuple(self._open)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


async def send_changes(
    sink: Sink, look: Look, is_gone: Callable[[], bool], news: Callable[[], object] = lambda: None
) -> None:
    """Sends what ``look`` gives until the browser is gone, or ``STREAM_S`` is over; then it connects anew if it is there.

    When ``news()`` is another than it was, the rest is short: something has happened that people wait for.
    """
    try:
        async with asyncio.timeout(STREAM_S):
            await _send_changes(sink, look, is_gone, news)
    except (TimeoutError, ConnectionError):
        return


async def _send_changes(sink: Sink, look: Look, is_gone: Callable[[], bool], news: Callable[[], object]) -> None:
    loop, sent, quiet_since_s = asyncio.get_running_loop(), 0, asyncio.get_running_loop().time()
    while True:
        pace, known = Pace(), news()
        event = await _event(look, pace)
        looked_s, rest_s = loop.time(), REST * pace.busy_s
        if event and hash(event) != sent:
            sent, quiet_since_s = hash(event), loop.time()
            await _send(sink, event)
        elif loop.time() - quiet_since_s >= QUIET_S:
            quiet_since_s = loop.time()
            await _send(sink, b":\n\n")
        while True:
            wanted_s = rest_s if news() == known else rest_s / HASTE
            left_s = looked_s + min(max(LOOK_S, wanted_s), MAX_REST_S) - loop.time()
            if left_s <= 0:
                break
            await asyncio.sleep(min(left_s, LOOK_S))
            if is_gone():
                return


async def _event(look: Look, pace: Pace) -> bytes:
    """One event; ``refused`` when there is nothing to be seen, such as a group that was deleted."""
    try:
        seen = await look(pace)
    except ViewError as error:
        return b"event: refused\ndata: " + json.dumps({"error": str(error)}).encode() + b"\n\n"
    return b"" if seen is None else b"data: " + json.dumps(seen, separators=(",", ":")).encode() + b"\n\n"


async def _send(sink: Sink, data: bytes) -> None:
    async with asyncio.timeout(SEND_S):
        await sink.write(data)
