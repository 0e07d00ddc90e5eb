"""An event loop with virtual time and a seeded order of ready callbacks.

The draw of the next ready callback is the only choice the loop makes; time stands still while anything is ready and jumps to
the next timer when nothing is. Work belongs to a ``Process``, found through its context: what a dead process left behind is
kept and never run again, which is what a power cut looks like to Python code (a cancelled task would run its ``finally``).
"""

from __future__ import annotations

import asyncio
import hashlib
import heapq
import inspect
import warnings
from asyncio import events
from collections.abc import Callable, Coroutine
from contextvars import Context, ContextVar, copy_context
from math import inf
from random import Random
from typing import Any, Final, Protocol, TypeVar

from coordinator.filesystem.executor import CallUnderWay

T = TypeVar("T")

START_S: Final = 1_000.0
STEP_S: Final = 2e-6
"""How long one callback takes. Without it a deadline that is a rounding error away would spin forever."""


class Deadlock(Exception):
    """Nothing is ready and no timer runs: whoever waits, waits forever."""


class OutOfSteps(Exception):
    """The history takes more steps than it may: something spins."""


class Process:
    """One incarnation of a program on a host. Once ``dead`` it runs nothing any more."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.dead = False
        self.held: list[asyncio.Handle] | None = None
        """What would have run while the process is stopped; None while it runs."""
        self.went_on_s = -inf
        """When it ran again after it was stopped last."""
        self.tasks: list[asyncio.Task[Any]] = []

    def keep(self, task: asyncio.Task[Any]) -> None:
        """Holds on to a task: one that is collected would run its ``finally`` blocks."""
        self.tasks.append(task)
        if len(self.tasks) > 256 and sum(kept.done() for kept in self.tasks) > 128:
            self.tasks = [kept for kept in self.tasks if not kept.done()]


PROCESS: Final[ContextVar[Process | None]] = ContextVar("PROCESS", default=None)
"""The process that the running callback belongs to; None for the simulation itself."""


class Net(Protocol):
    """What the loop needs of a network."""

    async def connect(self, protocol_factory: Callable[[], asyncio.BaseProtocol], host: str, port: int) -> Any:
        """Opens a connection from the running process."""

    def listen(self, protocol_factory: Callable[[], asyncio.BaseProtocol], host: str, port: int) -> Any:
        """Listens for the running process."""


class DiskCalls(Protocol):
    """How calls that production hands to threads are carried out."""

    def latency_s(self) -> tuple[float, float]:
        """Seconds before and after the call."""

    def call(self, function: Callable[..., Any], args: tuple[Any, ...]) -> tuple[bool, Any, BaseException | None]:
        """Whether the process survived the call, its result and its exception."""


class SimLoop(asyncio.AbstractEventLoop):
    """See the module text. ``fifo`` keeps the order in which callbacks became ready, as real loops do."""

    def __init__(self, order: Random, *, fifo: bool = False, max_steps: int = 2_000_000) -> None:
        self.steps = 0
        self.net: Net | None = None
        self.disk_calls: DiskCalls | None = None
        self.failures: list[str] = []
        """What reached the exception handler: an error nobody took, a callback that raised."""
        self.dropped: list[object] = []
        self._order = order
        self._fifo = fifo
        self._max_steps = max_steps
        self._now = START_S
        self._sequence = 0
        self._ready: list[asyncio.Handle] = []
        self._timers: list[tuple[float, int, asyncio.TimerHandle]] = []
        self._hash = hashlib.sha256()
        self._running = False
        self._closed = False
        self._stopping = False
        self._disposing = False
        self._tasks = Process("simulation")

    # Time and callbacks

    def time(self) -> float:
        """Virtual seconds."""
        return self._now

    def call_soon(self, callback: Callable[..., object], *args: Any, context: Context | None = None) -> asyncio.Handle:  # type: ignore[override]
        """See asyncio."""
        handle = asyncio.Handle(callback, args, self, context)
        if not self._disposing:
            self._ready.append(handle)
        return handle

    call_soon_threadsafe = call_soon  # type: ignore[assignment]

    def call_later(  # type: ignore[override]
        self, delay: float, callback: Callable[..., object], *args: Any, context: Context | None = None
    ) -> asyncio.TimerHandle:
        """See asyncio."""
        return self.call_at(self._now + delay, callback, *args, context=context)

    def call_at(  # type: ignore[override]
        self, when: float, callback: Callable[..., object], *args: Any, context: Context | None = None
    ) -> asyncio.TimerHandle:
        """See asyncio."""
        handle = asyncio.TimerHandle(when, callback, args, self, context)
        if not self._disposing:
            self._sequence += 1
            heapq.heappush(self._timers, (when, self._sequence, handle))
        return handle

    def _timer_handle_cancelled(self, handle: asyncio.TimerHandle) -> None:
        """Called by ``TimerHandle.cancel``; the entry is passed over when it comes up."""

    def create_future(self) -> asyncio.Future[Any]:
        """See asyncio."""
        return asyncio.Future(loop=self)

    def create_task(  # type: ignore[override]
        self, coro: Coroutine[Any, Any, T], *, name: str | None = None, context: Context | None = None
    ) -> asyncio.Task[T]:
        """See asyncio. Tasks are kept in the order they were made."""
        task: asyncio.Task[T] = asyncio.Task(coro, loop=self, name=name or "task", context=context)
        process = PROCESS.get() if context is None else context.get(PROCESS)
        (process or self._tasks).keep(task)
        return task

    def spawn(self, process: Process, coro: Coroutine[Any, Any, T]) -> asyncio.Task[T]:
        """Starts ``coro`` as work of ``process``."""
        context = copy_context()
        context.run(PROCESS.set, process)
        return context.run(lambda: self.create_task(coro, context=context))

    def go_on(self, process: Process) -> None:
        """SIGCONT: all that came up meanwhile is ready now."""
        held, process.held, process.went_on_s = process.held, None, self._now
        self._ready.extend(held or ())

    # Running

    def run_until_complete(self, future: Any) -> Any:
        """Runs until ``future`` is done. Raises ``Deadlock`` or ``OutOfSteps``."""
        main = asyncio.ensure_future(future, loop=self)
        main.add_done_callback(lambda _: self.stop())
        self.run_forever()
        if not main.done():
            raise RuntimeError("the loop was stopped before its work was done")
        return main.result()

    def run_forever(self) -> None:
        """Runs until ``stop``."""
        self._running, self._stopping = True, False
        outer = events._get_running_loop()
        events._set_running_loop(self)
        try:
            while not self._stopping:
                self._step()
        finally:
            events._set_running_loop(outer)
            self._running = False

    def _step(self) -> None:
        timers = self._timers
        while timers and (timers[0][0] <= self._now or not self._ready):
            when, _, timer = heapq.heappop(timers)
            if timer.cancelled():
                continue
            if when > self._now:
                self._now = when
            self._ready.append(timer)
        ready = self._ready
        if not ready:
            raise Deadlock("nothing is ready and no timer runs")
        if self._fifo or len(ready) == 1:
            handle = ready.pop(0)
        else:
            index = int(self._order.random() * len(ready))
            handle = ready[index]
            ready[index] = ready[-1]
            ready.pop()
        if handle.cancelled():
            return
        context: Context = handle._context  # type: ignore[attr-defined]
        process = context.get(PROCESS)
        if process is not None and process.dead:
            self.dropped.append(handle)
            return
        if process is not None and process.held is not None:
            process.held.append(handle)
            return
        self.steps += 1
        if self.steps > self._max_steps:
            raise OutOfSteps(f"more than {self._max_steps} steps at {self._now:.3f} s")
        self._now += STEP_S
        owner = process.name if process is not None else "-"
        self._hash.update(f"{self._now:.6f} {owner} {_name(handle)}\n".encode())
        handle._run()

    @property
    def trace_hash(self) -> str:
        """Hash over time, process and name of every callback that ran; equal histories have equal ones."""
        return self._hash.hexdigest()

    def stop(self) -> None:
        """See asyncio."""
        self._stopping = True

    def is_running(self) -> bool:
        """See asyncio."""
        return self._running

    def is_closed(self) -> bool:
        """See asyncio."""
        return self._closed

    def close(self) -> None:
        """See asyncio."""
        self._closed = True

    async def shutdown_asyncgens(self) -> None:
        """See asyncio; nothing to do."""

    async def shutdown_default_executor(self, timeout: float | None = None) -> None:
        """See asyncio; nothing to do."""

    def get_debug(self) -> bool:
        """See asyncio."""
        return False

    def set_debug(self, enabled: bool) -> None:
        """See asyncio; there is no debug mode."""

    # What reaches out

    def run_in_executor(self, executor: Any, func: Callable[..., T], *args: Any) -> asyncio.Future[T]:  # type: ignore[override]
        """Runs ``func`` inline as a step of its own, after and before the time the disk takes."""
        # Like the daemon's threads, which nobody can call back; only the default ones belong to others.
        future = self.create_future() if executor is None else CallUnderWay(loop=self)
        calls = self.disk_calls
        before_s, after_s = calls.latency_s() if calls is not None else (0.0, 0.0)

        def run() -> None:
            survived, result, error = calls.call(func, args) if calls is not None else _call(func, args)
            if survived:
                self.call_later(after_s, finish, result, error)

        def finish(result: T, error: BaseException | None) -> None:
            if future.done():
                return
            if error is not None:
                future.set_exception(error)
            else:
                future.set_result(result)

        self.call_later(before_s, run)
        return future

    async def create_server(self, protocol_factory: Any, host: Any = None, port: Any = None, **_: Any) -> Any:
        """Listens on the simulated network."""
        if self.net is None:
            raise OSError("this loop has no network")
        return self.net.listen(protocol_factory, host, port)

    async def create_connection(self, protocol_factory: Any, host: Any = None, port: Any = None, **_: Any) -> Any:
        """Connects on the simulated network."""
        if self.net is None:
            raise OSError("this loop has no network")
        return await self.net.connect(protocol_factory, host, port)

    # Errors and the end

    def get_exception_handler(self) -> None:
        """See asyncio."""

    def set_exception_handler(self, handler: Any) -> None:
        """See asyncio; failures are kept in any case."""

    def default_exception_handler(self, context: dict[str, Any]) -> None:
        """See asyncio."""
        self.call_exception_handler(context)

    def call_exception_handler(self, context: dict[str, Any]) -> None:
        """Keeps what went wrong."""
        if not self._disposing:
            error = context.get("exception")
            self.failures.append(f"{context.get('message')}: {error!r}")

    def dispose(self, processes: list[Process]) -> None:
        """Ends everything that is left, quietly: the history is over and its end proves nothing any more."""
        self._disposing = True
        outer = events._get_running_loop()
        events._set_running_loop(self)
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore", RuntimeWarning)  # coroutines that never began
                for _ in range(20):  # what is closed may start more
                    left = [task for process in (*processes, self._tasks) for task in process.tasks if not task.done()]
                    for process in (*processes, self._tasks):
                        process.tasks = []
                    for task in left:
                        task._log_destroy_pending = False  # type: ignore[attr-defined]
                        _close(task.get_coro())
            self._ready.clear()
            self._timers.clear()
            self.dropped.clear()
        finally:
            events._set_running_loop(outer)
        self._closed = True


def _close(coroutine: Any) -> None:
    frame = coroutine.cr_frame if inspect.iscoroutine(coroutine) else None
    if frame is not None and inspect.getcoroutinestate(coroutine) == inspect.CORO_CREATED:
        for argument in frame.f_locals.values():  # one that was to await another has not begun that one either
            if inspect.iscoroutine(argument):
                argument.close()
    for _ in range(50):  # a coroutine may await in its ``finally`` blocks, and must be closed once more then
        try:
            coroutine.close()
        except BaseException:  # whatever dying code raises, nobody is left to hear it
            continue
        return


def _call(function: Callable[..., Any], args: tuple[Any, ...]) -> tuple[bool, Any, BaseException | None]:
    try:
        return True, function(*args), None
    except Exception as error:
        return True, None, error


def _name(handle: asyncio.Handle) -> str:
    callback = handle._callback  # type: ignore[attr-defined]
    owner = getattr(callback, "__self__", None)
    if isinstance(owner, asyncio.Task):
        return str(owner.get_coro().__qualname__)  # type: ignore[union-attr]
    return str(getattr(callback, "__qualname__", type(callback).__name__))
