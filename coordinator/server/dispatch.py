"""A request under way, from its decoding to its answer: the call itself, the handler of its kind, steps, tasks.

A handler is a function that takes a ``Call``. It runs at once, in the order requests came in on the connection, up to its
decision; what must wait goes on in a task of the ``Tasks`` below, which end with the daemon. A handler whose decision takes
longer than a turn of the loop should returns an iterator, each step of which does about as much as fits (``STEP``);
whatever the connection asked after it waits for the last step.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, ClassVar, Final

from coordinator.log_output import get_logger
from coordinator.runtime.fair_queue import PER_TURN
from coordinator.server.call import NO_ERRORS, Call, Handler
from protocol.errors import ErrorCode
from protocol.framing import RequestFrame
from protocol.messages import REQUESTS, Request, Response
from protocol.messages.groups import CARRY_ON

if TYPE_CHECKING:
    from coordinator.server.connection import Connection

log = get_logger()

MAX_ERROR_TEXT_BYTES: Final = 64 * 1024
_MAX_TEXT_CHARS: Final = 1000

STEP: Final = 64
"""Entries of a request, of some 20 to 40 µs each, that are done in one step."""


class WireCall:
    """A ``Call`` that came over the wire as it is handled."""

    __slots__ = ("begun_s", "charge", "client_id", "connection", "correlation_id", "on_abandon", "open", "request")

    of_kafka: ClassVar[bool] = False
    begun_s: float
    """When its handler got it, by the clock of the meter; not set where that is not asked for."""

    def __init__(self, connection: Connection, frame: RequestFrame, request: Request, charge: int) -> None:
        self.connection = connection
        self.correlation_id = frame.correlation_id
        self.client_id = frame.client_id
        self.request = request
        self.charge = charge
        self.open = True
        self.on_abandon: Callable[[], object] | None = None

    def answer(self, response: Response) -> None:
        """Sends the answer."""
        if self.open:
            connection = self.connection
            pieces = connection.wire.answer(self, response)
            self.open = False
            self.on_abandon = None
            connection.ended(pieces)
            meter = connection.meter
            if meter is not None:
                if response is CARRY_ON:
                    meter.carried_on += 1
                    if meter.sampled is self:
                        meter.end_sample()
                else:
                    meter.answered(self, response)

    async def until_its_turn(self) -> None:
        """See ``Call``."""
        await self.connection.until_turn(self.correlation_id)

    def answer_packed(self, head: bytes, body: bytes, errors: Mapping[int, int] = NO_ERRORS) -> None:
        """See ``Call``."""
        if self.open:
            self._end(self.connection.wire.answer_packed(self, head, body), errors)

    def refuse(self, code: ErrorCode, message: str) -> None:
        """Answers the request as a whole with an error."""
        if self.open:
            self._end(self.connection.wire.refuse(self, code, message), {code: 1})

    def finish_silently(self) -> None:
        """Ends a request that has no answer (Produce with acks 0)."""
        if self.open:
            self._end(self.connection.wire.finish(self))

    async def until_sent(self) -> None:
        """See ``Call``: it is sent as it was given."""

    def keep_bytes(self) -> Callable[[], None]:
        """The request's bytes stay in memory beyond its answer; call what is returned once they do not."""
        size, self.charge = self.charge, 0
        budget = self.connection.budget
        return lambda: budget.give(size)

    def abandon(self) -> None:
        """The connection is gone: nothing will be answered."""
        if not self.open:
            return  # answered a moment ago, when another request of this connection was abandoned
        self.open = False
        self.connection.wire.finish(self)
        on_abandon, self.on_abandon = self.on_abandon, None
        if on_abandon is not None:
            on_abandon()

    def _end(self, pieces: list[bytes], errors: Mapping[int, int] = NO_ERRORS) -> None:
        self.open = False
        self.on_abandon = None
        connection = self.connection
        connection.ended(pieces)
        if connection.meter is not None:
            connection.meter.ended(self, errors)


class Dispatcher:
    """Holds one handler a request class. Raises ``ValueError`` at start when one of ``requests`` has none."""

    def __init__(
        self, handlers: Mapping[type[Request], Handler], requests: Mapping[int, type[Request]] = REQUESTS
    ) -> None:
        missing = [request.__name__ for request in requests.values() if request not in handlers]
        if missing:
            raise ValueError(f"no handler for {', '.join(missing)}")
        self._handlers = dict(handlers)

    def handle(self, call: Call) -> Iterator[asyncio.Future[None] | None] | None:
        """Passes a call to its handler; returns the steps that are left to do, if there are any."""
        try:
            return self._handlers[type(call.request)](call)
        except Exception:
            tell_failure(call)
            return None


def tell_failure(call: Call) -> None:
    """What follows a fault of ours: the client is told, the daemon lives, the log has the traceback."""
    log.exception("request_failed", request=type(call.request).__name__, peer=call.connection.peer)
    call.refuse(ErrorCode.UNKNOWN_SERVER_ERROR, "the daemon failed unexpectedly; its log has the cause")


class SteppedCall:
    """A call that is handled in steps, each when the fair queue has time for it; also when its client is gone.

    ``on_last`` is called after the last step.
    """

    def __init__(
        self, call: WireCall, steps: Iterator[asyncio.Future[None] | None], on_last: Callable[[], None]
    ) -> None:
        self._call = call
        self._steps = steps
        self._on_last = on_last

    def begin(self) -> None:
        """Does the first step at once."""
        if self._step():
            self._wait()

    def _wait(self, _: object = None) -> None:
        connection = self._call.connection
        connection.fair_queue.put(connection, self._step, PER_TURN)

    def _step(self) -> bool:
        """Returns whether there is time for another: not after the last, and not while the next one waits for something."""
        try:
            waits_for = next(self._steps)
        except StopIteration:
            pass
        except Exception:
            tell_failure(self._call)
        else:
            if waits_for is None:
                return True
            waits_for.add_done_callback(self._wait)
            return False
        self._on_last()
        return False


class ErrorTexts:
    """What the entries of one answer say of their errors: an answer must not become many times its request.

    Once the texts take ``MAX_ERROR_TEXT_BYTES``, further entries have their code alone.
    """

    def __init__(self) -> None:
        self._left = MAX_ERROR_TEXT_BYTES

    def __call__(self, text: str) -> str:
        """The text, or as much of it as there is room for."""
        text = text[: min(_MAX_TEXT_CHARS, self._left)]
        self._left -= len(text)
        return text


class Tasks:
    """Requests that wait for something. Their number is bounded by the connections' own bounds."""

    def __init__(self) -> None:
        self.stopping = False
        """Set when the daemon stops: what waits answers with what it has."""
        self._tasks: dict[asyncio.Task[None], None] = {}
        self._waiting: dict[asyncio.Event, None] = {}
        self._hurried = 0

    def start(self, call: Call, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        """Runs ``work`` for ``call``, in the task that is returned. It is cancelled when the connection closes."""
        task = asyncio.create_task(self._guard(call, work), name=f"cohort-{type(call.request).__name__}")
        self._tasks[task] = None

        def ended(done: asyncio.Task[None]) -> None:
            self._tasks.pop(done, None)
            work.close()  # a task that was cancelled before it began has not awaited it

        task.add_done_callback(ended)
        call.on_abandon = task.cancel
        return task

    def start_change(self, call: Call, work: Coroutine[Any, Any, None]) -> None:
        """Runs ``work`` for ``call`` to its end, also when the client hangs up; until then the request takes its memory."""
        forget_bytes = call.keep_bytes()
        self.start(call, work).add_done_callback(lambda _: forget_bytes())
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

    def hurry(self) -> None:
        """Memory is short: every long poll is answered with what it has, and its client asks again."""
        self._hurried += 1
        for event in self._waiting:
            event.set()

    def patience(self, call: Call) -> Callable[[], bool]:
        """Tells, from now on, whether a long poll may go on waiting."""
        hurried, budget = self._hurried, call.connection.budget
        return lambda: not (self.stopping or self._hurried != hurried or budget.exhausted)

    async def next_step(self, call: Call) -> None:
        """Returns when there is time for the next step of a request; see ``STEP``."""
        await call.connection.fair_queue.acquire((call.connection, "steps"))

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
            tell_failure(call)
