"""A blocking connection to one daemon, for tasks of Spark: one thread, no event loop, every wait bounded.

Requests may be sent ahead: ``send`` gives the correlation id whose answer ``receive`` waits for. A connection that broke,
or whose user left answers unread, is of no more use.
"""

from __future__ import annotations

import math
import os
import socket
import struct
from dataclasses import replace
from time import perf_counter
from typing import Any, Final, TypeVar, cast

from client.errors import CohortError, ConnectionLostError, RequestTimedOutError, error_for
from client.transport.metadata import Address
from protocol.codec import decode_message, encode_message
from protocol.errors import ErrorCode, ProtocolError
from protocol.framing import DEFAULT_MAX_FRAME_BYTES, LENGTH_BYTES, decode_response, encode_request
from protocol.long_bytes import long_bytes
from protocol.messages import Request, Response
from protocol.messages.records import FetchResponse

ResponseT = TypeVar("ResponseT", bound=Response)

_CONNECT_S: Final = 10.0
_LENGTH: Final = struct.Struct(">I")
_SOCKET_BUFFER: Final = 4 * 1024 * 1024
_LARGE: Final = 64 * 1024
"""Answers from this size on are looked into before they are received as a whole."""
_HEAD: Final = 1024
"""Enough for the fields before the records: the longest is the topic's name."""


class Until:
    """A deadline ``timeout_ms`` from now, for code without an event loop."""

    __slots__ = ("_at_s", "timeout_ms")

    def __init__(self, timeout_ms: float) -> None:
        self.timeout_ms = timeout_ms
        self._at_s = perf_counter() + timeout_ms / 1000

    def left_s(self, what: str) -> float:
        """Seconds left. Raises ``RequestTimedOutError`` naming ``what`` when there are none."""
        left = self._at_s - perf_counter()
        if left <= 0:
            raise RequestTimedOutError(f"{what} was not done within {self.timeout_ms:.0f} ms")
        return left

    @property
    def passed(self) -> bool:
        """Whether the time is over."""
        return perf_counter() >= self._at_s


class BlockingConnection:
    """One connection. Raises ``ConnectionLostError`` saying why there is none."""

    def __init__(self, address: Address, client_id: str, until: Until) -> None:
        self.peer = f"{address[0]}:{address[1]}"
        self._client_id = client_id
        self._next_id = 0
        self._waiting: dict[int, type[Response]] = {}
        self._arrived: dict[int, Any] = {}
        self._room = bytearray()
        self.closed = False
        self._silence_s = math.inf
        try:
            self._socket = socket.create_connection(address, timeout=min(_CONNECT_S, until.left_s("connecting")))
            self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, _SOCKET_BUFFER)
        except OSError as error:
            raise ConnectionLostError(
                f"cannot connect to {self.peer}: {error}; is a daemon listening there?"
            ) from error

    @property
    def next_correlation_id(self) -> int:
        """The id that the next request must carry."""
        return self._next_id

    @property
    def client_id(self) -> str:
        """The client id that the daemon is told."""
        return self._client_id

    @property
    def idle(self) -> bool:
        """Whether nothing is in flight, so that another user may take it over."""
        return not self.closed and not self._waiting and not self._arrived

    def send(self, request: Request, until: Until) -> int:
        """Sends a request; returns the correlation id of its answer."""
        frame = encode_request(
            request.api_key, request.versions[1], self._next_id, self._client_id, encode_message(request)
        )
        return self.send_frame(frame, request.response, until)

    def send_frame(self, frame: bytes, response_type: type[Response], until: Until) -> int:
        """Sends a whole frame that carries ``next_correlation_id``."""
        self._check()
        correlation_id, self._next_id = self._next_id, self._next_id + 1
        try:
            self._socket.settimeout(until.left_s(f"a request to {self.peer}"))
            self._socket.sendall(frame)
        except CohortError:
            self.close()
            raise
        except OSError as error:
            raise self._lost(error) from error
        self._waiting[correlation_id] = response_type
        return correlation_id

    def receive(
        self, correlation_id: int, response_type: type[ResponseT], until: Until, silence_s: float = math.inf
    ) -> ResponseT:
        """The answer to an earlier request; others that come first are kept until they are asked for.

        A node that sends nothing at all for ``silence_s`` is given up, for another may lead meanwhile. Raises
        ``ConnectionLostError``, ``RequestTimedOutError``, or the error with which the daemon refused the request.
        """
        self._silence_s = silence_s
        while correlation_id not in self._arrived:
            self._check()
            self._receive_one(until)
        answer = self._arrived.pop(correlation_id)
        if isinstance(answer, CohortError):
            raise answer
        assert isinstance(answer, response_type), f"{type(answer).__name__} for {response_type.__name__}"
        return answer

    def call(self, request: Request, response_type: type[ResponseT], until: Until) -> ResponseT:
        """Sends a request and waits for its answer."""
        return self.receive(self.send(request, until), response_type, until)

    def close(self) -> None:
        """Closes at once."""
        self.closed = True
        self._socket.close()

    def _receive_one(self, until: Until) -> None:
        (length,) = _LENGTH.unpack(self._exactly(LENGTH_BYTES, until))
        try:
            if not 0 < length <= DEFAULT_MAX_FRAME_BYTES:
                raise ProtocolError(f"a frame of {length} bytes")
            payload, records = self._payload(length, until)
            frame = decode_response(payload)
            kind = self._waiting.pop(frame.correlation_id, None)
            if kind is None:
                return
            if frame.error_code != ErrorCode.NONE:
                self._arrived[frame.correlation_id] = error_for(frame.error_code, frame.error_message)
            else:
                answer = decode_message(kind, frame.body)
                self._arrived[frame.correlation_id] = answer if records is None else _with_records(answer, records)
        except ProtocolError as error:
            self.close()
            raise ConnectionLostError(f"{self.peer} sent bytes that are no valid response: {error}") from error

    def _payload(self, length: int, until: Until) -> tuple[bytes | bytearray, memoryview | None]:
        """The next ``length`` bytes; if they are the answer to a fetch, without the records, which come by themselves."""
        if length < _LARGE:
            return self._exactly(length, until), None
        head = self._exactly(_HEAD, until)
        found = long_bytes(head)
        start = 0 if found is None else found.start
        taken = len(head) - start
        room = self._borrowed(length - start)
        room[:taken] = head[start:]
        self._fill(room[taken:], until)
        if found is None:
            return room.tobytes(), None
        if found.length > len(room):
            raise ProtocolError(f"a byte string of {found.length} bytes in a frame of {length}")
        return found.without(head, room[found.length :]), room[: found.length]

    def _borrowed(self, size: int) -> memoryview:
        """Room for an answer: that of an earlier one if there are no views of it left, for new memory costs more than
        to fill it."""
        try:
            self._room.append(0)  # only refused while there are views of it
            self._room.pop()
        except BufferError:
            self._room = bytearray()
        if len(self._room) < size:
            self._room = bytearray(size)
        return memoryview(self._room)[:size]

    def _exactly(self, length: int, until: Until) -> bytearray:
        received = bytearray(length)
        self._fill(memoryview(received), until)
        return received

    def _fill(self, rest: memoryview, until: Until) -> None:
        try:
            while rest:
                self._socket.settimeout(min(until.left_s(f"an answer of {self.peer}"), self._silence_s))
                count = self._socket.recv_into(rest)
                if not count:
                    raise ConnectionResetError("it closed the connection")
                rest = rest[count:]
        except CohortError:
            self.close()
            raise
        except OSError as error:
            raise self._lost(error) from error

    def _lost(self, error: OSError) -> CohortError:
        self.close()
        if isinstance(error, TimeoutError):
            return RequestTimedOutError(f"{self.peer} did not answer in time")
        return ConnectionLostError(f"the connection to {self.peer} broke: {error}")

    def _check(self) -> None:
        if self.closed:
            raise ConnectionLostError(f"the connection to {self.peer} is closed")


def _with_records(answer: Any, records: memoryview) -> FetchResponse:
    """An answer whose records were received by themselves; a task asks for one partition at a time."""
    if isinstance(answer, FetchResponse) and len(answer.responses) == 1:
        (topic,) = answer.responses
        if len(topic.partitions) == 1:
            partition = replace(topic.partitions[0], records=cast("bytes", records))
            return replace(answer, responses=(replace(topic, partitions=(partition,)),))
    raise ProtocolError("a long byte string that is not the records of one partition")


class ConnectionPool:
    """The connections of one process, kept for its next task: Spark uses a worker process again."""

    def __init__(self) -> None:
        self._pid = os.getpid()
        self._idle: dict[tuple[Address, str], BlockingConnection] = {}

    def take(self, address: Address, client_id: str, until: Until) -> BlockingConnection:
        """A connection for one user."""
        if self._pid != os.getpid():  # a fork shares the sockets of its parent, and must not speak on them
            self._pid, self._idle = os.getpid(), {}
        connection = self._idle.pop((address, client_id), None)
        if connection is not None and connection.idle:
            return connection
        return BlockingConnection(address, client_id, until)

    def give_back(self, address: Address, connection: BlockingConnection) -> None:
        """Its user is done; closed unless it is fit for another."""
        if connection.idle:
            before = self._idle.get((address, connection.client_id))
            if before is not None:
                before.close()
            self._idle[(address, connection.client_id)] = connection
        else:
            connection.close()


POOL: Final = ConnectionPool()
"""The connections of this process."""
