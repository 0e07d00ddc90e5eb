"""Where membership runs: off the user's event loop, so that a handler that blocks it for a minute costs nothing.

In production that is one thread a process with an event loop of its own, shared by all members. A simulation has one
loop and no threads and passes ``SameLoop``; the code that runs on either is the same.
"""

from __future__ import annotations

import asyncio
import atexit
import sys
import threading
import time
from collections.abc import Coroutine
from typing import Any, Final, Protocol, TypeVar

T = TypeVar("T")

_EXIT_WAIT_S: Final = 2.0


class Background(Protocol):
    """A loop to run coroutines on, seen from the user's loop."""

    def submit(self, work: Coroutine[Any, Any, T]) -> asyncio.Future[T]:
        """Runs ``work`` there; the future belongs to the calling loop, and cancelling it cancels the work."""
        ...

    def time(self) -> float:
        """Seconds on that loop's clock; may be read from anywhere."""
        ...


_CLOCK: Final[int | None] = getattr(
    time, "CLOCK_BOOTTIME", getattr(time, "CLOCK_MONOTONIC", None) if sys.platform == "darwin" else None
)
"""A clock that goes on while the machine sleeps: Linux's CLOCK_BOOTTIME, and macOS's CLOCK_MONOTONIC; None without one."""


class AwareLoop(asyncio.SelectorEventLoop):
    """A loop whose clock goes on while the machine sleeps, unlike ``time.monotonic``.

    A session ends at the coordinator while a laptop's lid is closed. Its member must know, when it wakes up, before it hands
    out another record: others may have its partitions.
    """

    def time(self) -> float:
        """Seconds since the machine was booted, sleep included where the system can tell."""
        return super().time() if _CLOCK is None else time.clock_gettime(_CLOCK)


class BackgroundThread:
    """A daemon thread with its own loop, started when first used and restarted in a forked child."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._thread: threading.Thread | None = None
        self._loop: asyncio.AbstractEventLoop | None = None

    def submit(self, work: Coroutine[Any, Any, T]) -> asyncio.Future[T]:
        """See ``Background.submit``."""
        return asyncio.wrap_future(asyncio.run_coroutine_threadsafe(work, self._running()))

    def time(self) -> float:
        """See ``Background.time``."""
        return self._running().time()

    def call(self, work: Coroutine[Any, Any, T], timeout_s: float) -> T:
        """Runs ``work`` there and waits for it, from a thread without a loop. Cancelled after ``timeout_s`` seconds: then
        raises ``TimeoutError``."""
        future = asyncio.run_coroutine_threadsafe(work, self._running())
        try:
            return future.result(timeout_s)
        finally:
            future.cancel()

    def stop(self) -> None:
        """Ends the thread; a later use starts another."""
        with self._lock:
            thread, loop = self._thread, self._loop
            self._thread = self._loop = None
        if thread is not None and loop is not None and thread.is_alive():
            loop.call_soon_threadsafe(loop.stop)
            thread.join(_EXIT_WAIT_S)

    def _running(self) -> asyncio.AbstractEventLoop:
        thread, loop = self._thread, self._loop
        if loop is not None and thread is not None and thread.is_alive():
            return loop
        with self._lock:
            if self._loop is None or self._thread is None or not self._thread.is_alive():
                # Not what a policy may give: uvloop's clock stands still between two turns of its loop, and ``time`` is
                # asked from outside, first of all by a process that has just been woken up.
                self._loop = AwareLoop()
                self._thread = threading.Thread(
                    target=_run_loop, args=(self._loop,), name="cohort-background", daemon=True
                )
                self._thread.start()
            return self._loop


def _run_loop(loop: asyncio.AbstractEventLoop) -> None:
    asyncio.set_event_loop(loop)
    try:
        loop.run_forever()
    finally:
        tasks = asyncio.all_tasks(loop)
        for task in tasks:
            task.cancel()
        loop.run_until_complete(asyncio.gather(*tasks, return_exceptions=True))
        loop.close()


class SameLoop:
    """No thread: the work becomes tasks on the caller's own loop."""

    def submit(self, work: Coroutine[Any, Any, T]) -> asyncio.Future[T]:
        """See ``Background.submit``."""
        return asyncio.get_running_loop().create_task(work)

    def time(self) -> float:
        """See ``Background.time``."""
        return asyncio.get_running_loop().time()


SHARED_THREAD: Final = BackgroundThread()
"""The one background thread of this process."""

atexit.register(SHARED_THREAD.stop)
