"""Blocking disk calls, taken off the event loop."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from functools import partial
from queue import SimpleQueue
from threading import Thread
from typing import Any, Final, ParamSpec, TypeVar

from coordinator.filesystem.reserve import Reserve
from coordinator.filesystem.storage import File, Storage
from coordinator.log_output import get_logger

log = get_logger()

_COMMITS_AHEAD: Final = 2
"""Group commits that are handed to the threads beyond those which can run, so that no thread waits for the loop."""

P = ParamSpec("P")
T = TypeVar("T")


class CallUnderWay(asyncio.Future[T]):
    """The result of a call that a thread makes. It cannot be called back.

    A task that is cancelled while it waits for one learns so when the call is over.
    """

    def cancel(self, msg: Any = None) -> bool:
        """Does nothing."""
        return False


class _Threads:
    """Threads whose results come straight to the loop that asked; started when calls come, ``threads`` at most.

    No ``ThreadPoolExecutor``: a write with its sync takes some 0.05 ms on a good disk, and the pool's own future, lock and
    semaphore as long again, which every acknowledgement waits for.

    The threads are daemons. A process that ends without ``shutdown`` ends as if it was killed, which loses nothing that was
    acknowledged.
    """

    def __init__(self, threads: int, name: str) -> None:
        self.pending = 0
        """Calls that wait or run."""
        self._most = threads
        self._name = name
        self._started = 0
        self._closed = False
        self._calls: SimpleQueue[Callable[[], None] | None] = SimpleQueue()

    def submit(self, function: Callable[[], T]) -> CallUnderWay[T]:
        """Calls ``function`` in a thread; to be called on a loop, which gets the result. Not after ``shutdown``."""
        if self._closed:
            raise RuntimeError("the disk was closed: nothing may be read or written any more")
        future: CallUnderWay[T] = CallUnderWay(loop=asyncio.get_running_loop())
        if self.pending >= self._started < self._most:
            name = f"{self._name}_{self._started}"
            self._started += 1
            Thread(target=_serve, args=(self._calls,), name=name, daemon=True).start()
        self.pending += 1
        self._calls.put(partial(self._call, future, function))
        return future

    def shutdown(self) -> None:
        """Each thread ends after the calls that were handed over before; nothing is waited for."""
        self._closed = True
        for _ in range(self._started):
            self._calls.put(None)

    def _call(self, future: CallUnderWay[T], function: Callable[[], T]) -> None:
        """Runs in a thread."""
        try:
            settle = partial(future.set_result, function())
        except BaseException as error:
            settle = partial(future.set_exception, error)
        loop = future.get_loop()
        if not loop.is_closed():  # or else nothing waits any more
            loop.call_soon_threadsafe(self._settled, settle)

    def _settled(self, settle: Callable[[], None]) -> None:
        self.pending -= 1
        settle()


def _serve(calls: SimpleQueue[Callable[[], None] | None]) -> None:
    while (call := calls.get()) is not None:
        call()
        del call  # what it holds may be megabytes, and the next one may be long in coming


class Disk:
    """A storage and the bounded pools of threads that its blocking calls run in.

    There are three lanes, so that no acknowledgement waits for a reader that comes from far behind or for compaction:
    ``run`` for what is written and synced, ``read`` for what clients read, ``tend`` for maintenance and what opens, makes
    and removes logs. ``threads`` bounds how many calls of a lane run at once; further ones wait their turn in order of
    arrival. Each waiting call belongs to a coroutine that awaits it, so what bounds those bounds the queue.
    """

    def __init__(self, storage: Storage, threads: int = 4) -> None:
        self.storage = storage
        self.reserve = Reserve(storage)
        self._closed = False
        self._writing = _Threads(threads, "disk-write")
        self._reading = _Threads(threads, "disk-read")
        self._tending = _Threads(threads, "disk-tend")
        self.commits = asyncio.Semaphore(threads + _COMMITS_AHEAD)
        """Held by a log from when it takes what is to be written until that is on disk.

        Of a hundred logs that have something to write most wait for it, and what comes to them meanwhile goes with the same
        write and the same sync.
        """

    async def run(self, function: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        """Calls ``function`` in a thread for writes and returns what it returns or raises what it raises.

        A call that has been handed over always runs to its end. When the caller is cancelled meanwhile, the cancellation
        is delivered once the call is over and its result is dropped: after ``run`` no thread touches the arguments any
        more, so files can be closed and state rolled back safely. If the result of a cancelled call matters, ``function``
        keeps it in an object of its own.
        """
        return await _called(self._writing, partial(function, *args, **kwargs))

    async def read(self, function: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        """As ``run``, in a thread for reads."""
        return await _called(self._reading, partial(function, *args, **kwargs))

    async def tend(self, function: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        """As ``run``, in a thread for maintenance."""
        return await _called(self._tending, partial(function, *args, **kwargs))

    def pending(self) -> dict[str, int]:
        """Calls that wait or run now, by lane."""
        lanes = {"write": self._writing, "read": self._reading, "maintenance": self._tending}
        return {name: lane.pending for name, lane in lanes.items()}

    def close_file(self, file: File) -> None:
        """Closes a file that nothing uses any more, in a thread for maintenance.

        The last close of a file that has been removed gives back its blocks, which takes long for a large one.
        """
        if self._closed:
            file.close()
        else:
            self._tending.submit(file.close).add_done_callback(_note_failed_close)

    def close(self) -> None:
        """Takes no further calls; threads end when their last call does. Call it when everything using it is closed."""
        self._closed = True
        for lane in (self._writing, self._reading, self._tending):
            lane.shutdown()


async def _called(lane: _Threads, function: Callable[[], T]) -> T:
    future = lane.submit(function)
    try:
        return await future
    except asyncio.CancelledError as error:
        raise error from future.exception()


def _note_failed_close(closed: asyncio.Future[None]) -> None:
    if (error := closed.exception()) is not None:
        log.warning("file_not_closed", error=str(error))
