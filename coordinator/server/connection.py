"""One client's connection on the daemon's side.

An ``asyncio.Protocol``, not a stream: the hot path is one call from the socket to the handler. Requests are handed on in
the order they came; answers leave when they are ready. What a connection can hold is bounded: one frame, ``max_in_flight``
requests, and the socket's own write buffer. At a bound it is not read until there is room.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from itertools import count
from typing import Final, Protocol, cast

from coordinator.log_output import get_logger
from protocol.codec import decode_message, encode_message
from protocol.errors import ErrorCode, ProtocolError
from protocol.framing import FrameReader, RequestFrame, decode_request, encode_refusal, encode_response
from protocol.messages import REQUESTS, ApiKey, Request, Response

log = get_logger()

CLOSE_TIMEOUT_S: Final = 30.0

_numbers = count(1)

_SPOKEN: Final = {
    (key, version): request
    for key, request in REQUESTS.items()
    for version in range(request.versions[0], request.versions[1] + 1)
}


class Call:
    """One request under way: what was asked, by whom, and the way back for exactly one answer."""

    __slots__ = ("client_id", "connection", "correlation_id", "on_abandon", "open", "request")

    def __init__(self, connection: Connection, correlation_id: int, client_id: str, request: Request) -> None:
        self.connection = connection
        self.correlation_id = correlation_id
        self.client_id = client_id
        self.request = request
        self.open = True
        self.on_abandon: Callable[[], None] | None = None
        """Called when the connection closes before the answer; a long poll stops waiting here."""

    def answer(self, response: Response) -> None:
        """Sends the answer. Nothing happens when the connection is gone."""
        if self._end():
            self.connection.send(encode_response(self.correlation_id, encode_message(response)))

    def refuse(self, code: ErrorCode, message: str) -> None:
        """Answers the request as a whole with an error."""
        if self._end():
            self.connection.send(encode_refusal(self.correlation_id, code, message))

    def finish_silently(self) -> None:
        """Ends a request that has no answer (Produce with acks 0)."""
        self._end()

    def _end(self) -> bool:
        if not self.open:
            return False
        self.open = False
        self.on_abandon = None
        self.connection.ended(self)
        return True


class ConnectionOwner(Protocol):
    """What a connection needs of the listener that made it: bounds, admission, and where requests go."""

    max_frame_bytes: int
    max_in_flight: int
    handle: Callable[[Call], None]

    def admit(self, connection: Connection) -> bool:
        """Counts a new connection; False when there are too many."""

    def forget(self, connection: Connection) -> None:
        """The connection is gone."""


class Connection(asyncio.Protocol):
    """See the module text. Made by the listener."""

    def __init__(self, listener: ConnectionOwner) -> None:
        self.number = next(_numbers)
        self.peer = "unknown"
        self.host = "unknown"
        self.local: tuple[str, int] = ("", 0)
        self._listener = listener
        self._max_in_flight = listener.max_in_flight
        self._reader = FrameReader(listener.max_frame_bytes)
        self._transport: asyncio.Transport | None = None
        self._calls: dict[int, Call] = {}
        self._backlog: deque[bytes] = deque()
        self._congested = False
        self._reading = True
        self._next_call = 0

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
        if not self._listener.admit(self):
            self._transport.abort()

    def connection_lost(self, exc: Exception | None) -> None:
        """Called by the loop: everything still under way is abandoned."""
        self._transport = None
        self._backlog.clear()
        calls, self._calls = self._calls, {}
        for call in calls.values():
            call.open = False
            if call.on_abandon is not None:
                call.on_abandon()
        self._listener.forget(self)

    def data_received(self, data: bytes) -> None:
        """Called by the loop."""
        try:
            for payload in self._reader.feed(data):
                if len(self._calls) < self._max_in_flight and not self._congested and not self._backlog:
                    self._take(payload)
                else:
                    self._backlog.append(payload)
        except ProtocolError as error:
            self._close_with(str(error))
            return
        if self._calls:  # with nothing under way there is room, and reading goes on
            self._adjust_reading()

    def eof_received(self) -> None:
        """Called by the loop: a client that shut its sending side down is done."""

    def pause_writing(self) -> None:
        """Called by the loop: the client does not read its answers; its requests wait."""
        self._congested = True
        self._adjust_reading()

    def resume_writing(self) -> None:
        """Called by the loop."""
        self._congested = False
        self._drain_backlog()

    def send(self, frame: bytes) -> None:
        """Queues bytes for the client."""
        if self._transport is not None:
            self._transport.write(frame)

    def ended(self, call: Call) -> None:
        """A call has its answer; there may be room for another."""
        self._calls.pop(call.correlation_id, None)
        if not self._reading:
            self._drain_backlog()

    def close(self) -> None:
        """Closes once everything queued is sent, or after ``CLOSE_TIMEOUT_S`` when the client does not read."""
        if self._transport is not None and not self._transport.is_closing():
            self._transport.close()
            asyncio.get_running_loop().call_later(CLOSE_TIMEOUT_S, self.abort)

    def abort(self) -> None:
        """Closes at once; what is queued is lost."""
        if self._transport is not None:
            self._transport.abort()

    def _has_room(self) -> bool:
        return len(self._calls) < self._max_in_flight and not self._congested

    def _drain_backlog(self) -> None:
        try:
            while self._backlog and self._transport is not None and self._has_room():
                self._take(self._backlog.popleft())
        except ProtocolError as error:
            self._close_with(str(error))
            return
        self._adjust_reading()

    def _adjust_reading(self) -> None:
        wanted = self._has_room() and not self._backlog
        if self._transport is None or wanted == self._reading or self._transport.is_closing():
            return
        self._reading = wanted
        if wanted:
            self._transport.resume_reading()
        else:
            self._transport.pause_reading()

    def _take(self, payload: bytes) -> None:
        frame = decode_request(payload)
        request_type = _SPOKEN.get((frame.api_key, frame.api_version)) or self._request_type(frame)
        if request_type is None:
            return
        if frame.correlation_id in self._calls:
            raise ProtocolError(f"correlation id {frame.correlation_id} is in use by a request still under way")
        try:
            request = decode_message(request_type, frame.body)
        except ProtocolError as error:
            self.send(encode_refusal(frame.correlation_id, ErrorCode.INVALID_REQUEST, str(error)))
            raise
        call = Call(self, frame.correlation_id, frame.client_id, request)
        self._calls[frame.correlation_id] = call
        try:
            self._listener.handle(call)
        except Exception:
            # The one place that survives a fault of ours: the client is told, the daemon lives, the log has the traceback.
            log.exception("a request failed unexpectedly", request=request_type.__name__, peer=self.peer)
            call.refuse(ErrorCode.UNKNOWN_SERVER_ERROR, "the daemon failed unexpectedly; its log has the cause")

    def _request_type(self, frame: RequestFrame) -> type[Request] | None:
        request_type = REQUESTS.get(frame.api_key)
        if request_type is None:
            known = ", ".join(f"{entry.api_key.value} {entry.api_key.name}" for entry in REQUESTS.values())
            message = f"api key {frame.api_key} is unknown here; known are {known}"
            self.send(encode_refusal(frame.correlation_id, ErrorCode.UNSUPPORTED_VERSION, message))
            return None
        lowest, highest = request_type.versions
        if not lowest <= frame.api_version <= highest and frame.api_key != ApiKey.API_VERSIONS:
            message = (
                f"{request_type.__name__} version {frame.api_version} is unknown here; {lowest} to {highest} are spoken"
            )
            self.send(encode_refusal(frame.correlation_id, ErrorCode.UNSUPPORTED_VERSION, message))
            return None
        return request_type

    def _close_with(self, reason: str) -> None:
        log.warning("connection closed: malformed input", peer=self.peer, reason=reason)
        self.close()
