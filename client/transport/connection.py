"""One connection to one daemon: requests out, responses back in any order.

Many coroutines share a connection. Every request has its own deadline; a late answer is dropped. When the connection
breaks, each request that waits fails at once.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any, Final, Generic, TypeVar, cast

from client.errors import ConnectionLostError, NotADaemonError, RequestTimedOutError, error_for
from client.transport.request_limits import checked_frame
from protocol.codec import decode_message
from protocol.errors import ErrorCode, ProtocolError
from protocol.framing import DEFAULT_MAX_FRAME_BYTES, FrameReader, decode_response
from protocol.messages import Request, Response
from protocol.messages.cluster import ApiVersionsRequest, ApiVersionsResponse

SILENCE_S: Final = 2.0
"""A request that times out after at least so many seconds without a byte from the daemon ends its connection."""

ResponseT = TypeVar("ResponseT", bound=Response)
Frame = Callable[[int, str], bytes | list[bytes]]
"""Makes the bytes of a request, perhaps in pieces, of a correlation id and the client id."""

_SHOWN_BYTES: Final = 40
"""How much of an answer in another protocol is shown."""

_PAUSED_BYTES: Final = 4 * 1024 * 1024
"""Bytes waiting in the socket's buffer above which senders wait."""


@dataclass(frozen=True, slots=True)
class Exchange(Generic[ResponseT]):
    """A request under way: its correlation id, and its answer to come."""

    correlation_id: int
    answer: asyncio.Future[ResponseT]


class ToldExchange(Generic[ResponseT]):
    """A request in flight whose answer, or the error in its place, is told to a function, once.

    It is told in the turn of the loop that brings the answer: no task waits for it. ``cancel`` keeps it from being told.
    """

    __slots__ = ("_connection", "_correlation_id", "_heard", "_name", "_tell", "_timeout_s", "_timer")

    def __init__(
        self, connection: Connection, correlation_id: int, name: str, tell: Callable[[ResponseT | Exception], None],
        timeout_s: float,
    ) -> None:  # fmt: skip
        self._connection = connection
        self._correlation_id = correlation_id
        self._name = name
        self._tell: Callable[[ResponseT | Exception], None] | None = tell
        self._timeout_s = timeout_s
        self._heard = connection.heard
        self._timer = connection._loop.call_later(timeout_s, self._expired)

    def done(self) -> bool:
        """Whether the outcome was told, or nothing is to be told any more."""
        return self._tell is None

    def set_result(self, outcome: ResponseT | Exception) -> None:
        """Tells the outcome."""
        tell, self._tell = self._tell, None
        if tell is not None:
            self._timer.cancel()
            tell(outcome)

    set_exception = set_result

    def cancel(self) -> None:
        """Nothing is told any more; an answer that comes later is dropped."""
        self._tell = None
        self._timer.cancel()
        self._connection._pending.pop(self._correlation_id, None)

    def _expired(self) -> None:
        self._connection._pending.pop(self._correlation_id, None)
        self.set_result(self._connection._silent(self._name, self._timeout_s, self._heard))


class Connection(asyncio.Protocol):
    """An open connection. Make one with ``await Connection.open(...)``."""

    def __init__(self, peer: str, client_id: str, max_frame_bytes: int = DEFAULT_MAX_FRAME_BYTES) -> None:
        self.peer = peer
        self.greeting: ApiVersionsResponse | None = None
        """What the daemon said of itself, its versions and limits, from ``greet`` on."""
        self._client_id = client_id
        self._loop = asyncio.get_running_loop()
        self._reader = FrameReader(max_frame_bytes)
        self._transport: asyncio.Transport | None = None
        self._pending: dict[int, tuple[asyncio.Future[Any] | ToldExchange[Any], type[Response]]] = {}
        self._next_correlation_id = 0
        self._writable = asyncio.Event()
        self._writable.set()
        self._failure: str | None = None
        self._cut_off = False  # something was still to be sent when the connection was lost
        self.heard = 0
        """How often bytes came."""
        self.suspect = False
        """Whether its node is suspected to be gone; see ``Connections``."""
        self._held: dict[int, float] = {}  # until when the daemon may rightly hold requests, by correlation id
        self._answered = False  # a whole response came: this is a daemon
        self._foreign: bytes | None = None  # how bytes began that are no response

    @classmethod
    async def open(cls, host: str, port: int, *, client_id: str, timeout_s: float) -> Connection:
        """Connects within ``timeout_s`` seconds. Raises ``ConnectionLostError`` saying why it could not."""
        peer = f"{host}:{port}"
        loop = asyncio.get_running_loop()
        try:
            async with asyncio.timeout(timeout_s):
                _, connection = await loop.create_connection(lambda: cls(peer, client_id), host, port)
        except TimeoutError as error:
            raise ConnectionLostError(f"no connection to {peer} within {timeout_s:.1f} s") from error
        except OSError as error:
            raise ConnectionLostError(f"cannot connect to {peer}: {error}; is a daemon listening there?") from error
        return connection

    async def greet(self, *, timeout_s: float) -> ApiVersionsResponse:
        """Makes sure that a Cohort daemon is at the other end, and returns what it says of itself.

        Raises ``NotADaemonError`` when the answer is of another protocol, and ``ConnectionLostError`` when there is none
        within ``timeout_s`` seconds or the connection is closed instead. The connection is of no more use then.
        """
        try:
            self.greeting = await self.request(
                ApiVersionsRequest("aiocohort"), ApiVersionsResponse, timeout_s=timeout_s
            )
            return self.greeting
        except RequestTimedOutError as error:
            self.give_up(f"{self.peer} did not answer")
            raise ConnectionLostError(
                f"{self.peer} accepts connections but said nothing within {timeout_s:.0f} s: another program may be "
                "listening there, or the daemon is stopped or overloaded"
            ) from error
        except ConnectionLostError as error:
            if self._foreign is not None:
                raise NotADaemonError(
                    f"{self.peer} is not a Cohort daemon: it sent {self._foreign!r}; check the host and the port"
                ) from error
            raise ConnectionLostError(
                f"{self.peer} closed the connection instead of answering: it is not a Cohort daemon, or it takes no more "
                f"connections ({self._failure})"
            ) from error

    @property
    def closed(self) -> bool:
        """Whether this connection is of no more use."""
        return self._failure is not None

    async def request(
        self,
        request: Request,
        response_type: type[ResponseT],
        *,
        timeout_s: float,
        longest_s: float | None = None,
        held_s: float = 0.0,
    ) -> ResponseT:
        """Sends a request and waits for its answer. ``held_s`` is how long the daemon may rightly hold it, in seconds.

        With ``longest_s``, for an answer that may be large, the time starts anew with whatever the daemon sends: it is given
        up ``timeout_s`` seconds after the last byte, or after ``longest_s`` in all.

        Raises what ``request_frame`` does, and ``InvalidRequestError`` at once for a request that no daemon could read: see
        ``request_limits``.
        """
        name, frame = type(request).__name__, partial(checked_frame, request)
        if longest_s is None:
            return await self.request_frame(name, frame, response_type, timeout_s=timeout_s, held_s=held_s)
        return await self._request_at_length(name, frame, response_type, timeout_s, longest_s, held_s)

    async def request_frame(
        self,
        name: str,
        frame: Frame,
        response_type: type[ResponseT],
        *,
        timeout_s: float,
        held_s: float = 0.0,
    ) -> ResponseT:
        """Sends what ``frame`` makes of a correlation id and the client id, and waits for the answer.

        Raises ``ConnectionLostError`` when the connection breaks, ``RequestTimedOutError`` after ``timeout_s`` seconds, and
        the error the daemon gave when it refused the request as a whole.
        """
        exchange: Exchange[ResponseT] | None = None
        try:
            async with asyncio.timeout(timeout_s):
                heard = self.heard
                await self._writable.wait()
                exchange = self._send(frame, response_type, held_s)
                return await exchange.answer
        except TimeoutError as error:
            raise self._silent(name, timeout_s, heard) from error
        finally:
            self._forget(exchange)

    async def _request_at_length(
        self,
        name: str,
        frame: Frame,
        response_type: type[ResponseT],
        silence_s: float,
        longest_s: float,
        held_s: float,
    ) -> ResponseT:
        exchange: Exchange[ResponseT] | None = None
        end_s = self._loop.time() + longest_s
        heard = self.heard
        try:
            async with asyncio.timeout(silence_s):
                await self._writable.wait()
            exchange = self._send(frame, response_type, held_s)
            while True:
                heard = self.heard
                await asyncio.wait((exchange.answer,), timeout=min(silence_s, max(0.0, end_s - self._loop.time())))
                if exchange.answer.done():
                    return exchange.answer.result()
                if self.heard == heard or self._loop.time() >= end_s:
                    raise TimeoutError
        except TimeoutError as error:
            raise self._silent(name, silence_s, heard) from error
        finally:
            self._forget(exchange)

    def begin(
        self,
        name: str,
        frame: Frame,
        response_type: type[ResponseT],
        tell: Callable[[ResponseT | Exception], None],
        *,
        timeout_s: float,
    ) -> ToldExchange[ResponseT] | None:
        """Sends what ``frame`` makes at once, or not at all: None when it would have to wait, or the connection is gone.

        ``tell`` is called with the answer, or with what ``request_frame`` would raise. It must not raise.
        """
        if self._failure is not None or not self._writable.is_set():
            return None
        correlation_id = self._next_correlation_id
        self._write(frame)
        exchange: ToldExchange[ResponseT] = ToldExchange(self, correlation_id, name, tell, timeout_s)
        self._pending[correlation_id] = (exchange, response_type)
        return exchange

    async def send_only(self, name: str, frame: Frame, *, timeout_s: float) -> None:
        """Sends a request that has no answer (Produce with acks 0); returns when the operating system has all of it.

        Raises ``ConnectionLostError`` when the connection breaks before, ``RequestTimedOutError`` after ``timeout_s``
        seconds. The daemon has then at most a part of the frame, which it does not obey: the request may be sent again.
        """
        try:
            async with asyncio.timeout(timeout_s):
                await self._empty()
                if self._transport is not None:
                    self._transport.set_write_buffer_limits(high=0)
                self._write(frame)
                await self._empty()
        except TimeoutError as error:
            self.give_up(f"{self.peer} took nothing for {timeout_s * 1000:.0f} ms")
            raise RequestTimedOutError(f"{self.peer} did not take {name} within {timeout_s * 1000:.0f} ms") from error
        if self._cut_off:
            raise ConnectionLostError(f"the connection to {self.peer} broke within a request: {self._failure}")

    async def _empty(self) -> None:
        """Waits until nothing is left to be sent, or the connection is lost."""
        while not self._writable.is_set():
            await self._writable.wait()

    def close(self) -> None:
        """Closes at once; each request that waits raises ``ConnectionLostError``."""
        self.give_up("closed by this client")

    def _silent(self, name: str, timeout_s: float, heard: int) -> RequestTimedOutError:
        """What it means that no answer came in time, after which the connection is of use only if something was heard."""
        if self.heard == heard and timeout_s >= SILENCE_S:
            # Not a byte in all that time: the path may be a black hole, and only a fresh connection can tell.
            self.give_up(f"{self.peer} was silent for {timeout_s * 1000:.0f} ms")
        return RequestTimedOutError(f"{self.peer} did not answer {name} within {timeout_s * 1000:.0f} ms")

    @property
    def awaits_any_answer(self) -> bool:
        """Whether a request has no answer yet."""
        return bool(self._pending)

    def awaits_answer(self, now_s: float) -> bool:
        """Whether a request has no answer yet that the daemon has no reason to hold, by the loop's clock."""
        held = self._held
        return any(held.get(correlation_id, 0.0) < now_s for correlation_id in self._pending)

    def _send(self, frame: Frame, response_type: type[ResponseT], held_s: float) -> Exchange[ResponseT]:
        correlation_id = self._next_correlation_id
        self._write(frame)
        answer: asyncio.Future[ResponseT] = self._loop.create_future()
        self._pending[correlation_id] = (answer, response_type)
        if held_s:
            self._held[correlation_id] = self._loop.time() + held_s
        return Exchange(correlation_id, answer)

    def _forget(self, exchange: Exchange[ResponseT] | None) -> None:
        if exchange is not None:
            self._pending.pop(exchange.correlation_id, None)
            self._held.pop(exchange.correlation_id, None)
            if exchange.answer.done() and not exchange.answer.cancelled():
                exchange.answer.exception()  # its caller may have been cancelled in the same turn and asks no more

    def _write(self, frame: Frame) -> None:
        if self._failure is not None or self._transport is None:
            raise ConnectionLostError(f"the connection to {self.peer} is gone: {self._failure}")
        data = frame(self._next_correlation_id, self._client_id)
        self._next_correlation_id += 1
        # One by one: ``writelines`` of asyncio's own loop joins them before Python 3.12, and has no flow control in 3.12.
        for piece in (data,) if isinstance(data, bytes) else data:
            self._transport.write(piece)

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Called by the loop."""
        self._transport = cast("asyncio.Transport", transport)
        self._transport.set_write_buffer_limits(high=_PAUSED_BYTES)

    def data_received(self, data: bytes) -> None:
        """Called by the loop; completes the futures whose answers ``data`` brings."""
        self.heard += 1
        try:
            for payload in self._reader.feed(data):
                self._answer(payload)
        except ProtocolError as error:
            if not self._answered:
                self._foreign = data[:_SHOWN_BYTES]
            self.give_up(f"{self.peer} sent bytes that are no valid response: {error}")

    def _answer(self, payload: bytes | bytearray) -> None:
        frame = decode_response(payload)
        self._answered = True
        waiting = self._pending.pop(frame.correlation_id, None)
        if waiting is None:
            return  # an answer that came after its deadline
        future, response_type = waiting
        if future.done():
            return
        if frame.error_code != ErrorCode.NONE:
            future.set_exception(error_for(frame.error_code, frame.error_message))
            return
        try:
            future.set_result(decode_message(response_type, frame.body))
        except ProtocolError as error:
            future.set_exception(ConnectionLostError(f"{self.peer} sent an answer that does not parse: {error}"))
            raise

    def connection_lost(self, exc: Exception | None) -> None:
        """Called by the loop."""
        self._fail(f"{self.peer} closed the connection" if exc is None else f"{self.peer}: {exc}")

    def give_up(self, reason: str) -> None:
        """Closes at once, for a reason that each request that waits is told."""
        self._fail(reason)
        if self._transport is not None:
            self._transport.abort()

    def _fail(self, reason: str) -> None:
        if self._failure is None:
            self._failure = reason
            self._cut_off = not self._writable.is_set()
        self._writable.set()
        pending, self._pending = self._pending, {}
        for future, _ in pending.values():
            if not future.done():
                future.set_exception(ConnectionLostError(f"the connection to {self.peer} broke: {reason}"))

    def pause_writing(self) -> None:
        """Called by the loop when too much waits to be sent."""
        self._writable.clear()

    def resume_writing(self) -> None:
        """Called by the loop when there is room again."""
        self._writable.set()
