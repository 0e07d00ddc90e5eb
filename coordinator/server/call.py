"""A request under way, and the way back for its answer."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Final

from protocol.codec import encode_message, pack
from protocol.errors import ErrorCode
from protocol.framing import (
    DEFAULT_MAX_FRAME_BYTES,
    LENGTH_BYTES,
    UNCOPIED_BYTES,
    encode_packed_response,
    encode_refusal,
    encode_response,
    encode_response_in_pieces,
    packed_response_head,
)
from protocol.messages import Request, Response
from protocol.messages.groups import CARRY_ON
from protocol.messages.records import FetchResponse

if TYPE_CHECKING:
    from coordinator.server.connection import Connection

_ENVELOPE_BYTES: Final = 16
"""At most, of an answer: its length, and its correlation id."""

_CARRY_ON_PACKED: Final = pack(encode_message(CARRY_ON))


class Call:
    """One request under way: what was asked, by whom, and the way back for exactly one answer."""

    __slots__ = ("_size", "client_id", "connection", "correlation_id", "on_abandon", "open", "request")

    def __init__(
        self, connection: Connection, correlation_id: int, client_id: str, request: Request, size: int
    ) -> None:
        self.connection = connection
        self.correlation_id = correlation_id
        self.client_id = client_id
        self.request = request
        self.open = True
        self.on_abandon: Callable[[], object] | None = None  # called when the connection closes before the answer
        self._size = size

    def answer(self, response: Response) -> None:
        """Sends the answer. Nothing happens when the connection is gone."""
        if self._end():
            if response is CARRY_ON:
                self.connection.send(encode_packed_response(self.correlation_id, _CARRY_ON_PACKED))
            else:
                body = encode_message(response)
                if type(response) is FetchResponse and _has_long_records(response):
                    pieces = encode_response_in_pieces(self.correlation_id, body)
                else:
                    pieces = [encode_response(self.correlation_id, body)]
                size = sum(map(len, pieces)) - LENGTH_BYTES
                if size > DEFAULT_MAX_FRAME_BYTES:
                    text = _too_large(self.request, size)
                    pieces = [encode_refusal(self.correlation_id, ErrorCode.INVALID_REQUEST, text)]
                if len(pieces) == 1:
                    self.connection.send(pieces[0])
                else:
                    self.connection.send_all(pieces)

    def answer_packed(self, head: bytes, body: bytes) -> None:
        """Sends the answer whose body is packed already, in two parts: of the second many answers may be made."""
        size = len(head) + len(body)
        if size > DEFAULT_MAX_FRAME_BYTES - _ENVELOPE_BYTES:
            self.refuse(ErrorCode.INVALID_REQUEST, _too_large(self.request, size))
        elif self._end():
            self.connection.send_all([packed_response_head(self.correlation_id, size) + head, body])

    def refuse(self, code: ErrorCode, message: str) -> None:
        """Answers the request as a whole with an error."""
        if self._end():
            self.connection.send(encode_refusal(self.correlation_id, code, message))

    def finish_silently(self) -> None:
        """Ends a request that has no answer (Produce with acks 0)."""
        self._end()

    def keep_bytes(self) -> Callable[[], None]:
        """The request's bytes stay in memory beyond its answer; call what is returned once they do not."""
        size, self._size = self._size, 0
        budget = self.connection.budget
        return lambda: budget.give(size)

    def close(self) -> None:
        """The connection is gone: nothing will be answered."""
        if not self.open:
            return  # answered a moment ago, when another request of this connection was abandoned
        self.open = False
        self.connection.budget.give(self._size)
        if self.on_abandon is not None:
            self.on_abandon()

    def _end(self) -> bool:
        if not self.open:
            return False
        self.open = False
        self.on_abandon = None
        connection = self.connection
        if self._size:
            connection.budget.give(self._size)
        connection.ended(self)
        return True


def _has_long_records(response: FetchResponse) -> bool:
    return any(len(entry.records) >= UNCOPIED_BYTES for topic in response.responses for entry in topic.partitions)


def _too_large(request: Request, size: int) -> str:
    """A client hangs up on such a frame, and would ask for it again and again."""
    return (
        f"the answer to {type(request).__name__} takes {size} bytes, at most {DEFAULT_MAX_FRAME_BYTES} are allowed; "
        f"ask for less at a time"
    )
