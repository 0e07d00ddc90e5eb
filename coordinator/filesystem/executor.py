"""Blocking disk calls, taken off the event loop."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import Executor
from contextlib import suppress
from functools import partial
from queue import SimpleQueue
from threading import Thread
from typing import Any, Final, ParamSpec, TypeVar
from weakref import finalize

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


class _Threads(Executor):
    """Threads whose results come straight to the loop that asked; started when calls come, ``threads`` at most.

    ``run_in_executor`` takes a future of asyncio's as it is. The way it makes of any other takes two turns of the loop
    more, and every acknowledgement waits for them.

    No ``ThreadPoolExecutor``: a write with its sync takes some 0.05 ms on a good disk, and the pool's own future, lock and
    semaphore half as long again.

    The threads are daemons. A process that ends without ``shutdown`` ends as if it was killed, which loses nothing that was
    acknowledged. They end as well when this is dropped.
    """

    def __init__(self, threads: int, name: str) -> None:
        self.pending = 0
        """Calls that coroutines wait for, those that run included."""
        self._most = threads
        self._name = name
        self._under_way = 0
        self._threads: list[Thread] = []
        self._calls: SimpleQueue[Callable[[], None] | None] = SimpleQueue()
        self._end = finalize(self, _end_all, self._threads, self._calls)

    def submit(self, function: Callable[..., T], /, *args: Any, **kwargs: Any) -> CallUnderWay[T]:  # type: ignore[override]
        """Calls ``function`` in a thread; to be called on a loop, which gets the result. Not after ``shutdown``."""
        if not self._end.alive:
            raise RuntimeError("the disk was closed: nothing may be read or written any more")
        future: CallUnderWay[T] = CallUnderWay(loop=asyncio.get_running_loop())
        if self._under_way >= len(self._threads) < self._most:
            self._start_one()
        self._under_way += 1
        self._calls.put(partial(_call, future, partial(function, *args, **kwargs), self._settled))
        return future

    def shutdown(self, wait: bool = False, *, cancel_futures: bool = False) -> None:
        """Each thread ends after the calls that were handed over before; nothing is waited for, and nothing cancelled."""
        self._end()

    def _start_one(self) -> None:
        name = f"{self._name}_{len(self._threads)}"
        thread = Thread(target=_serve, args=(self._calls,), name=name, daemon=True)
        try:
            thread.start()
        except RuntimeError:  # the system gives no more: those that there are have to do
            if not self._threads:
                raise
        else:
            self._threads.append(thread)

    def _settled(self, settle: Callable[[], None]) -> None:
        self._under_way -= 1
        settle()


def _end_all(threads: list[Thread], calls: SimpleQueue[Callable[[], None] | None]) -> None:
    for _ in threads:
        calls.put(None)


def _serve(calls: SimpleQueue[Callable[[], None] | None]) -> None:
    while (call := calls.get()) is not None:
        call()
        del call  # what it holds may be megabytes, and the next one may be long in coming


def _call(future: CallUnderWay[T], function: Callable[[], T], settled: Callable[[Callable[[], None]], None]) -> None:
    """Runs in a thread."""
    try:
        settle = partial(future.set_result, function())
    except BaseException as error:
        settle = partial(future.set_exception, error)
    loop = future.get_loop()
    with suppress(RuntimeError):  # the loop has been closed: nothing waits any more
        loop.call_soon_threadsafe(settled, settle)


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
            loop = asyncio.get_running_loop()
            loop.run_in_executor(self._tending, file.close).add_done_callback(_note_failed_close)

    def close(self) -> None:
        """Takes no further calls; threads end when their last call does. Call it when everything using it is closed."""
        self._closed = True
        for lane in (self._writing, self._reading, self._tending):
            lane.shutdown()


async def _called(lane: _Threads, function: Callable[[], T]) -> T:
    future = asyncio.get_running_loop().run_in_executor(lane, function)
    lane.pending += 1
    try:
        return await future
    except asyncio.CancelledError as error:
        raise error from future.exception()
    finally:
        lane.pending -= 1


def _note_failed_close(closed: asyncio.Future[None]) -> None:
    if (error := closed.exception()) is not None:
        log.warning("file_not_closed", error=str(error))
