"""Requests under way on one connection, without a socket: frames out, bytes in, each answer for the one that waits for it.

Answers come in any order. One that comes after its waiter was forgotten is dropped.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Generic, NamedTuple, TypeVar

from protocol.codec import decode_message, encode_message
from protocol.errors import ErrorCode
from protocol.framing import DEFAULT_MAX_FRAME_BYTES, FrameBuffer, decode_response, encode_request
from protocol.messages.api import Request, Response

WaiterT = TypeVar("WaiterT")


class Refusal(NamedTuple):
    """What a request was refused with as a whole."""

    code: ErrorCode
    message: str


class Exchanges(Generic[WaiterT]):
    """See the module text. A waiter is anything that the caller wants back together with the answer."""

    def __init__(self, client_id: str, max_frame_bytes: int = DEFAULT_MAX_FRAME_BYTES) -> None:
        self._client_id = client_id
        self._buffer = FrameBuffer(max_frame_bytes)
        self.space = self._buffer.space
        """Where to receive what comes next."""
        self._waiting: dict[int, tuple[WaiterT, type[Response]]] = {}
        self._next_id = 0

    def __len__(self) -> int:
        """How many requests have no answer yet."""
        return len(self._waiting)

    def begin(self, request: Request, waiter: WaiterT) -> tuple[int, bytes]:
        """The correlation id of a request from now on, and the frame to send."""
        correlation_id = self._next_id
        frame = encode_request(
            request.api_key, request.versions[1], correlation_id, self._client_id, encode_message(request)
        )
        self._next_id += 1
        self._waiting[correlation_id] = (waiter, request.response)
        return correlation_id, frame

    def forget(self, correlation_id: int) -> None:
        """The answer is not wanted any more."""
        self._waiting.pop(correlation_id, None)

    def received(self, count: int) -> Iterator[tuple[WaiterT, Response | Refusal]]:
        """The answers that the first ``count`` bytes of the last ``space`` complete, to be exhausted before the next.

        Raises ``ProtocolError`` for what is no answer; the connection is of no more use then.
        """
        for payload in self._buffer.received(count):
            frame = decode_response(payload)
            waiting = self._waiting.get(frame.correlation_id)
            if waiting is None:
                continue
            waiter, response_type = waiting
            outcome: Response | Refusal = Refusal(frame.error_code, frame.error_message)
            if frame.error_code == ErrorCode.NONE:
                outcome = decode_message(response_type, frame.body)
            del self._waiting[frame.correlation_id]
            yield waiter, outcome

    def abandon(self) -> list[WaiterT]:
        """The connection is gone: who waited for an answer."""
        waiting, self._waiting = self._waiting, {}
        return [waiter for waiter, _ in waiting.values()]
