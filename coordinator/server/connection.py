"""One client's connection on the daemon's side.

An ``asyncio.Protocol``, not a stream: the hot path is one call from the socket to the handler. Requests are handed on in
the order they came; answers leave when they are ready. What a connection can hold is bounded: one frame, ``max_in_flight``
requests, one answer being built of records, and the socket's own write buffer; and all share a budget of bytes. At a bound
a connection is not read until there is room. When more is asked than one turn of the loop may do, the first request of
each connection waits for its turn under its group's name, or else under its connection's (see ``fair_queue``). A request
that costs more than one turn may take is handled in steps, and what its connection sent after it waits behind the last of
them.
"""

from __future__ import annotations

import asyncio
import socket
from collections import deque
from collections.abc import Callable, Generator, Hashable, Iterator
from typing import Final, Protocol, cast

from coordinator.log_output import RateLimitedLog, get_logger
from coordinator.runtime.fair_queue import HEAVY, PER_TURN, FairQueue
from coordinator.server.budget import Arrivals, ByteBudget, Reading, UnreadAnswers
from coordinator.server.call import Call as Call
from coordinator.server.weights import LIGHT_BYTES, takes_turns, weight_of, weight_of_elements
from protocol.codec import decode_message, decode_message_in_steps
from protocol.errors import ErrorCode, ProtocolError
from protocol.framing import (
    NEVER_COUNTED_BYTES,
    FrameReader,
    OversizedRequestError,
    RequestFrame,
    decode_request,
    decode_request_in_steps,
    encode_refusal,
)
from protocol.messages import REQUESTS, ApiKey, Request

log = get_logger()

CLOSE_TIMEOUT_S: Final = 30.0  # how long a closing connection may take to send what is queued

_SPOKEN: Final = {
    (key, version): request
    for key, request in REQUESTS.items()
    for version in range(request.versions[0], request.versions[1] + 1)
}

_OF_ONE_GROUP: Final = frozenset(
    key for key, request in REQUESTS.items() if next(iter(request.__annotations__), "") == "group_id"
)
"""The API keys of requests whose first field names their group."""

_STEP_WEIGHT: Final = PER_TURN
"""Of one step of a request that is handled in steps."""

_ITEMS_PER_STEP: Final = 8_192
"""Of a long array, that are decoded in one step: about 3 ms."""

_MEMORY_PER_BYTE: Final = {
    ApiKey.PRODUCE: 1,
    ApiKey.JOIN_GROUP: 4,
    ApiKey.SYNC_GROUP: 4,
    ApiKey.HEARTBEAT: 4,
    ApiKey.FETCH: 64,  # four bytes make a partition that waits for records
}
_MEMORY_PER_BYTE_OF_OTHERS: Final = 32


class _Decoded:
    """A request that has been decoded in turns, and is to be handled in the next."""

    __slots__ = ("frame", "request")

    def __init__(self, frame: RequestFrame, request: Request) -> None:
        self.frame = frame
        self.request = request


_Head = bytes | bytearray | RequestFrame | _Decoded
"""A request that waits for its turn: as it came, or as far as it has been decoded."""


class ConnectionOwner(Protocol):
    """What a connection needs of the listener that made it: bounds, admission, and where requests go."""

    max_frame_bytes: int
    max_in_flight: int
    budget: ByteBudget
    arrivals: Arrivals[Connection]
    unread: UnreadAnswers[Connection]
    warnings: RateLimitedLog
    fair_queue: FairQueue
    handle: Callable[[Call], Iterator[asyncio.Future[None] | None] | None]
    sweep: int  # how many times the listener has looked for idle connections

    def admit(self, connection: Connection) -> bool:
        """Counts a new connection; False when there are too many."""

    def forget(self, connection: Connection) -> None:
        """The connection is gone."""


class Connection(asyncio.Protocol):
    """See the module text. Made by the listener."""

    def __init__(self, listener: ConnectionOwner) -> None:
        self.peer = "unknown"
        self.host = "unknown"
        self.client_id = ""  # of the last request
        self.number = 0  # given by the listener, to no other connection
        self.local: tuple[str, int] = ("", 0)
        self.budget = listener.budget
        self.unread = listener.unread
        self.sending = asyncio.Lock()
        """Held while an answer of records is read and sent, so that one client's fetches pile up on disk, not in memory."""
        self.heard_at_sweep = listener.sweep
        self.frame_begun_at_sweep = -1  # -1: no frame is half there
        self._listener = listener
        self.fair_queue = listener.fair_queue
        self._reader = FrameReader(listener.max_frame_bytes)
        self._transport: asyncio.Transport | None = None
        self._calls: dict[int, Call] = {}
        self._backlog: deque[bytes | bytearray] = deque()
        self._backlog_bytes = 0
        self._congested = False
        self._in_preparation = 0
        self._written = 0  # bytes of answers since the client connected
        self._fillings = 0
        self._queued = 0  # bytes of answers since the client was last seen to read all
        self._uncongested = asyncio.Event()
        self._uncongested.set()
        self._reading = True
        self._draining = False
        self._head: _Head | None = None  # the first of the backlog, while it waits for its turn
        self._decoding: Generator[None, None, _Decoded | None] | None = None  # of the head, if it takes several turns
        self._steps: Iterator[asyncio.Future[None] | None] | None = (
            None  # what is left to do of the request that was taken last
        )
        self._stepping: Call | None = None
        self._closing = False

    @property
    def idle(self) -> bool:
        """Whether nothing is under way: such a connection may be closed when it stays silent."""
        return not self._calls and not self._backlog

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Called by the loop."""
        self._transport = cast("asyncio.Transport", transport)
        peer = transport.get_extra_info("peername")
        local = transport.get_extra_info("sockname")
        if peer:
            self.host = peer[0]
            self.peer = f"{peer[0]}:{peer[1]}"
        if local:
            self.local = (local[0], local[1])
        raw = transport.get_extra_info("socket")
        if raw is not None:
            raw.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)  # a peer that lost power must not stay for ever
        if not self._listener.admit(self):
            self._transport.abort()

    def connection_lost(self, exc: Exception | None) -> None:
        """Called by the loop, also when a client shut its sending side down: everything under way is abandoned."""
        self._transport = None
        self._backlog.clear()
        self._decoding = None
        self.budget.forget(self._drain_backlog)
        self._uncongested.set()
        calls, self._calls = self._calls, {}
        for call in calls.values():
            call.close()
        self._listener.forget(self)

    def data_received(self, data: bytes) -> None:
        """Called by the loop."""
        self.heard_at_sweep = sweep = self._listener.sweep
        try:
            whole = self._reader.whole(data)
            for payload in self._reader.feed(data) if whole is None else (whole,):
                self.frame_begun_at_sweep = -1
                size = len(payload)
                weight = 1 if size <= LIGHT_BYTES else weight_of(payload)
                if (
                    self._has_room()
                    and not self._backlog
                    and (weight == 1 or not takes_turns(payload))
                    and self.fair_queue.try_acquire(self, weight)
                ):
                    if size <= NEVER_COUNTED_BYTES:
                        self._take(decode_request(payload), size)
                    else:
                        self._take_payload(payload)
                else:
                    self._backlog.append(payload)
                    self._backlog_bytes += len(payload)
            if self._backlog:
                self._wait_for_turn()
        except ProtocolError as error:
            self.close_with(f"malformed input: {error}")
            return
        if whole is None and self.frame_begun_at_sweep < 0 and self._reader.buffered_bytes:
            self.frame_begun_at_sweep = sweep
        if self._calls or self._backlog:  # with nothing under way there is room, and reading goes on
            self._adjust_reading()
        if whole is None or self._backlog:
            self._count_arrived()

    def pause_writing(self) -> None:
        """Called by the loop: the client does not read its answers; its requests wait."""
        self._congested = True
        self._fillings += 1
        self._uncongested.clear()
        self.count_unread()
        self._adjust_reading()

    def resume_writing(self) -> None:
        """Called by the loop."""
        self._congested = False
        self._uncongested.set()
        self.count_unread()
        self._drain_backlog()

    def count_unread(self) -> None:
        """Says what is held of answers; after one that was added to those that the client does not read, too.

        An answer counts in full until its last byte is sent: event loops keep it in one piece.
        """
        held = self._queued if self._congested and self._transport is not None else 0
        self.unread.holds(self, held + self._in_preparation)

    @property
    def reading(self) -> Reading:
        """How far the client is with reading its answers."""
        unsent = self._transport.get_write_buffer_size() if self._transport is not None else 0
        return Reading(self._written - unsent, unsent, self._fillings)

    def prepare(self, size: int) -> None:
        """Counts an answer of ``size`` bytes that is being put together; 0 when it is sent, or not wanted any more."""
        self._in_preparation = size
        self.count_unread()

    async def until_uncongested(self) -> None:
        """Returns once the client has read its earlier answers, or is gone."""
        await self._uncongested.wait()

    def send(self, frame: bytes) -> None:
        """Queues bytes for the client."""
        if self._transport is not None:
            size = len(frame)
            self._written += size
            self._queued = self._queued + size if self._congested else size
            self._transport.write(frame)

    def send_all(self, pieces: list[bytes]) -> None:
        """Queues bytes for the client, none of which is copied where the event loop can do without."""
        if self._transport is not None:
            size = sum(map(len, pieces))
            self._written += size
            self._queued = self._queued + size if self._congested else size
            self._transport.writelines(pieces)
            if self._congested:
                self.count_unread()

    def ended(self, call: Call) -> None:
        """A call has its answer; there may be room for another."""
        self._calls.pop(call.correlation_id, None)
        if not self._reading:
            self._drain_backlog()

    def stop_reading(self) -> None:
        """Takes no further requests; those under way are answered."""
        self._closing = True
        self._backlog.clear()
        self._backlog_bytes = 0
        self._adjust_reading()

    def close(self) -> None:
        """Closes once everything queued is sent, or after ``CLOSE_TIMEOUT_S`` when the client does not read."""
        self.stop_reading()
        if self._transport is not None and not self._transport.is_closing():
            self._transport.close()
            asyncio.get_running_loop().call_later(CLOSE_TIMEOUT_S, self.abort)

    def close_with(self, reason: str) -> None:
        """Closes because of what the client did, and says so in the log."""
        self._listener.warnings.tell("connection closed", peer=self.peer, reason=reason)
        self.close()

    def abort(self) -> None:
        """Closes at once; what is queued is lost."""
        if self._transport is not None:
            self._transport.abort()

    def _has_room(self) -> bool:
        return (
            len(self._calls) < self._listener.max_in_flight
            and not self._congested
            and not self._closing
            and self._steps is None
            and not self.budget.exhausted
        )

    def _drain_backlog(self) -> None:
        if self._draining:
            return  # an answer given at once brought us back here: the loop below goes on by itself
        self._take_from_backlog(self._take_while_free)

    def _take_from_backlog(self, take: Callable[[], None]) -> None:
        self._draining = True
        try:
            take()
            self._wait_for_turn()
        except ProtocolError as error:
            self.close_with(f"malformed input: {error}")
            return
        finally:
            self._draining = False
        self._adjust_reading()

    def _take_while_free(self) -> None:
        while self._may_take() and self._head is None:
            payload = self._backlog[0]
            if takes_turns(payload) or not self.fair_queue.try_acquire(self, weight_of(payload)):
                return
            self._take_payload(self._next_payload())

    def _next_payload(self) -> bytes | bytearray:
        payload = self._backlog.popleft()
        self._backlog_bytes -= len(payload)
        self._count_arrived()
        return payload

    def _count_arrived(self) -> None:
        """Says what is held of requests that are not complete or not taken yet: who holds most may have to give way."""
        self._listener.arrivals.holds(self, self._backlog_bytes + self._reader.buffered_bytes)

    def _may_take(self) -> bool:
        return bool(self._backlog) and self._transport is not None and self._has_room()

    def _wait_for_turn(self) -> None:
        """The first request of the backlog waits until there is time for it; one at a time, so that their order is kept."""
        while self._head is None and self._may_take():
            payload, key = self._backlog[0], cast("Hashable", self)
            weight = weight_of(payload)
            if weight > HEAVY or takes_turns(payload):
                self._head = payload  # even to look at it takes time
            else:
                self._head = frame = self._decoded(payload)
                if frame is None:
                    self._next_payload()
                    continue
                key = self._key_of(frame)
            self.fair_queue.put(key, self._on_turn, weight)

    def _key_of(self, frame: RequestFrame) -> Hashable:
        named = frame.api_key in _OF_ONE_GROUP and type(frame.body) is tuple and frame.body
        return frame.body[0] if named and type(frame.body[0]) is str else self

    def _on_turn(self) -> bool:
        """Takes the one request whose turn it is; the next one waits behind those of others.

        Returns whether it has to come back for it: a large one is decoded in turns of its own.
        """
        if self._decode_head():
            return True
        self._take_from_backlog(self._take_head)
        return False

    def _decode_head(self) -> bool:
        """Decodes a large request one part further; False when there is nothing to decode before it is handled."""
        if isinstance(self._head, _Decoded) or not self._may_take() or not takes_turns(self._backlog[0]):
            return False
        if self._decoding is None:
            self._decoding = self._decode_in_steps(self._backlog[0])
        try:
            next(self._decoding)
        except StopIteration as done:
            self._decoding, self._head = None, done.value
            if self._head is None:  # refused
                self._next_payload()
        except ProtocolError as error:
            self.close_with(f"malformed input: {error}")
            return False
        return self._head is not None

    def _decode_in_steps(self, payload: bytes | bytearray) -> Generator[None, None, _Decoded | None]:
        """The request in a large frame, or None once its sender was refused."""
        try:
            frame = yield from decode_request_in_steps(payload)
        except OversizedRequestError as error:
            self._refuse_oversized(error)
            return None
        yield
        request_type = self._type_of(frame)
        if request_type is None:
            return None
        try:
            request = yield from decode_message_in_steps(request_type, frame.body, _ITEMS_PER_STEP)
        except ProtocolError as error:
            self.send(encode_refusal(frame.correlation_id, ErrorCode.INVALID_REQUEST, str(error)))
            raise
        return _Decoded(frame, request)

    def _take_head(self) -> None:
        head, self._head = self._head, None
        if head is not None and self._may_take():
            payload = self._next_payload()
            if isinstance(head, _Decoded):
                self._begin(head.frame, head.request, len(payload))
            elif isinstance(head, RequestFrame):
                self._take(head, len(payload))
            else:
                self._take_payload(payload)

    def _adjust_reading(self) -> None:
        wanted = self._has_room() and not self._backlog
        if self._transport is None or self._transport.is_closing():
            return
        if not wanted and not self._closing and self.budget.exhausted:
            self.budget.when_there_is_room(self._drain_backlog)
        if wanted == self._reading:
            return
        self._reading = wanted
        if wanted:
            self._transport.resume_reading()
        else:
            self._transport.pause_reading()

    def _decoded(self, payload: bytes | bytearray) -> RequestFrame | None:
        """The request in a frame, or None once its sender has been told that it is larger than its kind may be."""
        try:
            self.fair_queue.charge(weight_of_elements(payload))
            return decode_request(payload)
        except OversizedRequestError as error:
            self._refuse_oversized(error)
            return None

    def _refuse_oversized(self, error: OversizedRequestError) -> None:
        log.debug("request refused", peer=self.peer, reason=str(error))
        self.send(encode_refusal(error.correlation_id, ErrorCode.INVALID_REQUEST, str(error)))

    def _take_payload(self, payload: bytes | bytearray) -> None:
        frame = self._decoded(payload)
        if frame is not None:
            self._take(frame, len(payload))

    def _take(self, frame: RequestFrame, size: int) -> None:
        request = self._request(frame)
        if request is not None:
            self._begin(frame, request, size)

    def _request(self, frame: RequestFrame) -> Request | None:
        """The request in a frame, or None once its sender has been told that its kind or version is unknown."""
        request_type = self._type_of(frame)
        if request_type is None:
            return None
        try:
            return decode_message(request_type, frame.body)
        except ProtocolError as error:
            self.send(encode_refusal(frame.correlation_id, ErrorCode.INVALID_REQUEST, str(error)))
            raise

    def _type_of(self, frame: RequestFrame) -> type[Request] | None:
        request_type = _SPOKEN.get((frame.api_key, frame.api_version)) or self._request_type(frame)
        if request_type is not None and frame.correlation_id in self._calls:
            raise ProtocolError(f"correlation id {frame.correlation_id} is in use by a request still under way")
        return request_type

    def _begin(self, frame: RequestFrame, request: Request, size: int) -> None:
        held = size * _MEMORY_PER_BYTE.get(frame.api_key, _MEMORY_PER_BYTE_OF_OTHERS)  # type: ignore[call-overload]
        self.budget.take(held)
        self.client_id = frame.client_id
        call = Call(self, frame.correlation_id, frame.client_id, request, held)
        self._calls[frame.correlation_id] = call
        try:
            steps = self._listener.handle(call)
        except Exception:
            self._failed(call)
        else:
            if steps is not None:
                self._steps, self._stepping = steps, call
                if self._go_on():
                    self.fair_queue.put(self, self._on_step, _STEP_WEIGHT)

    def _on_step(self) -> bool:
        more = self._go_on()
        if self._steps is None:
            self._drain_backlog()
        return more

    def _on_waited(self, _: object) -> None:
        self.fair_queue.put(self, self._on_step, _STEP_WEIGHT)

    def _go_on(self) -> bool:
        """Does a step of the request that is handled in steps, also when its client is gone.

        Returns whether there is time for another: not after the last, and not while the next one waits for something.
        """
        steps, call = self._steps, self._stepping
        assert steps is not None
        assert call is not None
        try:
            waits_for = next(steps)
        except StopIteration:
            pass
        except Exception:
            self._failed(call)
        else:
            if waits_for is None:
                return True
            waits_for.add_done_callback(self._on_waited)
            return False
        self._steps = self._stepping = None
        return False

    def _failed(self, call: Call) -> None:
        """The one place that survives a fault of ours: the client is told, the daemon lives, the log has the traceback."""
        log.exception("a request failed unexpectedly", request=type(call.request).__name__, peer=self.peer)
        call.refuse(ErrorCode.UNKNOWN_SERVER_ERROR, "the daemon failed unexpectedly; its log has the cause")

    def _request_type(self, frame: RequestFrame) -> type[Request] | None:
        request_type = REQUESTS.get(frame.api_key)
        if request_type is None:
            known = ", ".join(f"{entry.api_key.value} {entry.api_key.name}" for entry in REQUESTS.values())
            message = f"api key {frame.api_key} is unknown here; known are {known}"
            self.send(encode_refusal(frame.correlation_id, ErrorCode.UNSUPPORTED_VERSION, message))
            return None
        lowest, highest = request_type.versions
        if frame.api_key != ApiKey.API_VERSIONS:  # that one is answered whatever the version: it tells what is spoken
            message = (
                f"{request_type.__name__} version {frame.api_version} is unknown here; {lowest} to {highest} are spoken"
            )
            self.send(encode_refusal(frame.correlation_id, ErrorCode.UNSUPPORTED_VERSION, message))
            return None
        return request_type
