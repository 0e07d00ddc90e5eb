"""A request under way, and the way back for its answer."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from protocol.errors import ErrorCode
from protocol.framing import RequestFrame
from protocol.messages import Request, Response

if TYPE_CHECKING:
    from coordinator.server.connection import Connection


class Call:
    """One request under way: what was asked, by which client, and the way back for exactly one answer.

    Nothing happens when an answer comes after the connection is gone. ``on_abandon`` is called when that closes before the
    answer.
    """

    __slots__ = ("charge", "client_id", "connection", "correlation_id", "on_abandon", "open", "request")

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

    def answer_packed(self, head: bytes, body: bytes) -> None:
        """Sends the answer whose body is packed already, in two parts: of the second many answers may be made."""
        if self.open:
            self._end(self.connection.wire.answer_packed(self, head, body))

    def refuse(self, code: ErrorCode, message: str) -> None:
        """Answers the request as a whole with an error."""
        if self.open:
            self._end(self.connection.wire.refuse(self, code, message))

    def finish_silently(self) -> None:
        """Ends a request that has no answer (Produce with acks 0)."""
        if self.open:
            self._end(self.connection.wire.finish(self))

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
        if self.on_abandon is not None:
            self.on_abandon()

    def _end(self, pieces: list[bytes]) -> None:
        self.open = False
        self.on_abandon = None
        self.connection.ended(pieces)
