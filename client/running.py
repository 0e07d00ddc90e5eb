"""Runs a program as a service: on uvloop, and with signals that end it in order instead of at once."""

from __future__ import annotations

import asyncio
import signal
import threading
from collections.abc import Callable, Coroutine, Iterable
from typing import Any, Final, TypeVar

from client.log import get_logger

T = TypeVar("T")

_SIGNALS: Final = (signal.SIGTERM, signal.SIGINT)

log = get_logger()


def run(main: Coroutine[Any, Any, T], *, debug: bool | None = None) -> T:
    """Runs ``main`` to its end and returns its result, as ``asyncio.run`` does; SIGTERM and SIGINT cancel it first.

    ::

        async def main() -> None:
            async with Consumer("orders", group_id="kitchen") as consumer:
                await consumer.process(cook)

        run(main())

    Containers and service managers end a program with SIGTERM, which kills Python on the spot: a consumer then stays a
    member of its group, and its partitions are not read until its session is over (``session_timeout_ms``, 45 s). Here
    the main task is cancelled, so that every ``async with`` leaves: handlers of ``process`` may finish (``revoke_grace_ms``,
    10 s), what is done is committed, the group hears at once that the member leaves, and a producer sends what is queued.
    Give the service longer than that to stop: Kubernetes and Docker wait for 30 s and 10 s unless told otherwise.

    When ``main`` ends by the cancellation, ``SystemExit`` is raised: with status 0 after SIGTERM, for that is how a service
    is meant to end, and 130 after SIGINT. What ``main`` raises or returns otherwise is passed on. A second signal ends the
    process at once, whatever has not ended yet, threads included. Handlers of signals that the program had set before are
    set again when ``main`` has ended. Uses uvloop where it is installed.

    Python hears signals in the main thread only: in any other ``main`` runs all the same, and a warning in the log
    (``signals_not_heard``) says that no signal ends it in order. Raises ``RuntimeError`` when an event loop runs already.
    ``debug`` is asyncio's debug mode.
    """
    if _inside_a_loop():
        main.close()
        raise RuntimeError("run() was called inside a running event loop: await the coroutine instead")
    if not _in_main_thread():
        log.warning(
            "signals_not_heard",
            thread=threading.current_thread().name,
            hint="run() was not called in the main thread, the only one in which Python hears signals: SIGTERM ends the "
            "process without its leaving groups. Call run() in the main thread, or cancel main yourself",
        )
    with asyncio.Runner(debug=debug, loop_factory=loop_factory()) as runner:
        outcome = runner.run(until_signal(main, _SIGNALS, second_kills=True))
    if isinstance(outcome, Stopped):
        raise SystemExit(0 if outcome.number == signal.SIGTERM else 128 + outcome.number)
    return outcome


def loop_factory() -> Callable[[], asyncio.AbstractEventLoop]:
    """uvloop where it is installed, the standard loop elsewhere."""
    try:
        import uvloop
    except ImportError:
        return asyncio.new_event_loop
    return uvloop.new_event_loop


def _inside_a_loop() -> bool:
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return False
    return True


def _in_main_thread() -> bool:
    return threading.current_thread() is threading.main_thread()


class Stopped:
    """How a program ended that a signal has cancelled."""

    def __init__(self, number: signal.Signals) -> None:
        self.number = number


async def until_signal(
    main: Coroutine[Any, Any, T], signals: Iterable[signal.Signals], *, second_kills: bool = False
) -> T | Stopped:
    """The result of ``main``, or ``Stopped`` when it ended because the first of ``signals`` has cancelled it.

    SIGHUP stays ignored where it is, as under nohup. After the first signal all act as Python's own do, or with
    ``second_kills`` as the system's: Python's SIGINT would wait for tasks that do not heed their cancellation. Handlers that
    were set before are set again at the end.
    """
    loop = asyncio.get_running_loop()
    work = loop.create_task(main, name="cohort-main")
    nohup = signal.getsignal(signal.SIGHUP) == signal.SIG_IGN
    heard = [number for number in signals if _in_main_thread() and not (nohup and number == signal.SIGHUP)]
    before = {number: signal.getsignal(number) for number in heard}
    received: list[signal.Signals] = []

    def stop(number: signal.Signals) -> None:
        received.append(number)
        for each in heard:
            loop.remove_signal_handler(each)
            if second_kills:
                signal.signal(each, signal.SIG_DFL)
        log.info("stopping", signal=number.name)
        work.cancel()

    for number in heard:
        loop.add_signal_handler(number, stop, number)
    try:
        return await work
    except asyncio.CancelledError:
        if not received:
            raise
        return Stopped(received[0])
    finally:
        for number in heard:
            loop.remove_signal_handler(number)
            if before[number] is not None:  # None: set by a library in C, which cannot be set again from here
                signal.signal(number, before[number])
