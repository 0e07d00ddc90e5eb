"""What one client's bytes mean, without a socket: bytes in, calls out; answers in, bytes out.

Nothing here waits, reads a clock or knows asyncio, so a test feeds it byte by byte. Requests are given out in the order they
came; answers leave when they are ready, or in the order of their requests where the codec wants that. What a connection
holds is bounded: one frame that is half there, ``max_in_flight`` calls, and what they take of a budget that all connections
share.

How bytes become requests and answers become bytes is the codec's, which can be chosen by the first bytes that a client
sends: a ``Handshake`` has the connection until it names the codec.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Generator, Iterable
from typing import Final, Generic, NoReturn, Protocol, TypeVar

from coordinator.server.budget import ByteBudget
from protocol.errors import ErrorCode, ProtocolError
from protocol.framing import RequestFrame
from protocol.messages import Request, Response

MOST_HELD_BACK_BYTES: Final = 1024 * 1024
"""Of answers that wait for an earlier one: above it a connection's next request waits too."""

Payload = bytes | bytearray


class RequestRefusedError(Exception):
    """A request that is answered with an error as a whole; the connection stays."""

    def __init__(self, correlation_id: int, code: ErrorCode, text: str) -> None:
        super().__init__(text)
        self.correlation_id = correlation_id
        self.code = code


class MalformedRequestError(ProtocolError):
    """A request of which only the envelope can be read: its client is told what is wrong, then the connection closes."""

    def __init__(self, correlation_id: int, text: str) -> None:
        super().__init__(text)
        self.correlation_id = correlation_id


class Codec(Protocol):
    """How one connection writes requests and answers.

    ``feed`` raises ``ProtocolError`` for what is no frame; what decodes raises ``RequestRefusedError``,
    ``MalformedRequestError``, or ``ProtocolError`` where no request can be told.
    """

    answers_in_order: bool
    light_bytes: int
    """A request of so many bytes weighs 1, is decoded at once, and a closer look at it tells nothing more."""

    @property
    def buffered_bytes(self) -> int:
        """What is held of a frame that is half there."""

    def whole(self, data: bytes) -> Payload | None:
        """The payload, if ``data`` is exactly one frame, as most are; None where ``feed`` has to look."""

    def feed(self, data: bytes) -> Iterable[Payload]:
        """The payloads of the frames that ``data`` completes."""

    def weight(self, payload: Payload) -> int:
        """What the request may cost, as its bytes tell; see ``FairQueue``. More than 1 if it is large."""

    def hidden_weight(self, payload: Payload) -> int:
        """What it costs beside that, as a closer look at it tells when it is decoded."""

    def is_large(self, payload: Payload) -> bool:
        """Whether to decode the request takes several steps."""

    def envelope(self, payload: Payload) -> RequestFrame:
        """What is around the request."""

    def request(self, frame: RequestFrame) -> Request:
        """The request itself."""

    def group_id(self, frame: RequestFrame) -> str | None:
        """The group that a request is about, if it is about one: those of one group wait for one another only."""

    def decode_in_steps(self, payload: Payload) -> Generator[None, None, tuple[RequestFrame, Request]]:
        """Both, for a large request."""

    def memory(self, frame: RequestFrame, size: int) -> int:
        """Bytes of memory that a request of ``size`` bytes takes once it is decoded."""

    def encode(self, correlation_id: int, request: Request, response: Response) -> list[bytes]:
        """The answer; that it cannot be sent, where it is larger than a client takes."""

    def encode_packed(self, correlation_id: int, request: Request, head: bytes, body: bytes) -> list[bytes]:
        """The answer whose body is packed already, in two parts."""

    def encode_refusal(self, correlation_id: int, code: ErrorCode, text: str) -> bytes:
        """An answer that refuses the request as a whole."""


class Handshake(Protocol):
    """What comes before the first request: a choice by the first bytes, or an exchange of its own such as SASL's."""

    codec: Codec
    """What is spoken once ``receive`` has returned bytes."""

    @property
    def buffered_bytes(self) -> int:
        """What is held of a step that is half there."""

    def receive(self, data: bytes) -> tuple[list[bytes], bytes | None]:
        """What to send, and once the handshake is over the bytes behind it. Raises ``ProtocolError``."""


class CallLike(Protocol):
    """What is kept of a request until it is answered."""

    @property
    def correlation_id(self) -> int:
        """That of the request."""

    @property
    def request(self) -> Request:
        """What was asked."""

    charge: int
    """Bytes taken from the budget, given back with the answer; 0 when its handler gives them back later."""


CallT = TypeVar("CallT", bound=CallLike)
NewCall = Callable[[RequestFrame, Request, int], CallT]


def _no_call(frame: RequestFrame, request: Request, charge: int) -> NoReturn:
    raise AssertionError("a client that is gone asks nothing")


class ServerConnection(Generic[CallT]):
    """See the module text. ``new_call`` makes a call of an envelope, its request and the charge.

    ``congested`` and ``busy`` are told: that the client does not read its answers, and that a call is handled in steps,
    behind the last of which the next request waits.
    """

    def __init__(
        self,
        codec: Codec,
        new_call: NewCall[CallT],
        budget: ByteBudget,
        max_in_flight: int,
        handshake: Handshake | None = None,
    ) -> None:
        self.codec = codec
        self.budget = budget
        self.calls: dict[int, CallT] = {}
        self.pending: deque[Payload] = deque()
        """Requests that have arrived and were not taken."""
        self.pending_bytes = 0
        self.buffered_bytes = 0
        """What is held of a frame that is half there."""
        self.outgoing: list[bytes] = []
        """What is to be sent beside the answers of calls: refusals, and what a handshake says. The sender empties it."""
        self.refused: list[str] = []
        """Why requests were refused before they became calls; for the log, which empties it."""
        self.held_back = 0
        """Bytes of answers that wait for an earlier one, where answers leave in the order of their requests."""
        self.hidden_weight = 0
        """Of what ``prepare`` or ``take`` decoded last."""
        self.congested = False
        self.busy = False
        self.closing = False
        self._new_call = new_call
        self._max_in_flight = max_in_flight
        self._handshake = handshake
        self._envelope: RequestFrame | None = None  # of the first pending request, if that is known
        self._request: Request | None = None
        self._decoding: Generator[None, None, tuple[RequestFrame, Request]] | None = None
        self._order: dict[int, list[bytes] | None] | None = {} if codec.answers_in_order else None

    def receive(self, data: bytes) -> bool:
        """Takes bytes; returns whether they completed a frame. Raises ``ProtocolError``: the frames before are pending."""
        if self._handshake is not None:
            rest = self._shake_hands(self._handshake, data)
            if rest is None:
                return False
            data = rest
        codec, pending = self.codec, self.pending
        whole = codec.whole(data)
        if whole is not None:
            pending.append(whole)
            self.pending_bytes += len(whole)
            self.buffered_bytes = 0
            return True
        count = len(pending)
        for payload in codec.feed(data):
            pending.append(payload)
            self.pending_bytes += len(payload)
        self.buffered_bytes = codec.buffered_bytes
        return len(pending) > count

    def has_room(self) -> bool:
        """Whether another call may begin."""
        budget = self.budget
        return not (
            self.congested
            or self.closing
            or self.busy
            or budget.used >= budget.limit
            or self.held_back > MOST_HELD_BACK_BYTES
            or len(self.calls if self._order is None else self._order) >= self._max_in_flight
        )

    def is_next(self, correlation_id: int) -> bool:
        """Whether an answer to this request would leave at once, and not wait for an earlier one."""
        order = self._order
        return order is None or next(iter(order), correlation_id) == correlation_id

    def may_take(self) -> bool:
        """Whether a request is there and may begin."""
        return bool(self.pending) and self.has_room()

    def weight(self) -> int:
        """Of the first pending request; see ``FairQueue``."""
        codec, payload = self.codec, self.pending[0]
        return 1 if len(payload) <= codec.light_bytes else codec.weight(payload)

    def is_large(self) -> bool:
        """Whether the first pending request is decoded by ``decode_step``, before it is taken."""
        codec, payload = self.codec, self.pending[0]
        return len(payload) > codec.light_bytes and codec.is_large(payload)

    def prepare(self) -> RequestFrame | None:
        """The envelope of the first pending request; None when it was refused. Raises ``ProtocolError``."""
        if self._envelope is None:
            payload = self.pending[0]
            self.hidden_weight = self.codec.hidden_weight(payload)
            try:
                self._envelope = self.codec.envelope(payload)
            except RequestRefusedError as refused:
                self._refuse(refused)
        return self._envelope

    def decode_step(self) -> bool:
        """Decodes the first pending request one step further if it is a large one.

        Returns whether there is more to do before it is taken. Raises ``ProtocolError``.
        """
        if self._request is not None or not self.codec.is_large(self.pending[0]):
            return False
        if self._decoding is None:
            self._decoding = self.codec.decode_in_steps(self.pending[0])
        try:
            next(self._decoding)
        except StopIteration as decoded:
            self._decoding = None
            self._envelope, self._request = decoded.value
        except RequestRefusedError as refused:
            self._refuse(refused)
            return False
        except MalformedRequestError as error:
            self._tell(error.correlation_id, ErrorCode.INVALID_REQUEST, str(error))
            raise
        return True

    def take(self) -> CallT | None:
        """The first pending request as a call; None when it was refused. Raises ``ProtocolError``."""
        frame, request = self._envelope, self._request
        payload = self.pending.popleft()
        size = len(payload)
        self.pending_bytes -= size
        self._envelope = self._request = self._decoding = None
        codec = self.codec
        try:
            if frame is None:
                if size > codec.light_bytes:
                    self.hidden_weight = codec.hidden_weight(payload)
                frame = codec.envelope(payload)
            correlation_id = frame.correlation_id
            if correlation_id in self.calls:
                raise ProtocolError(f"correlation id {correlation_id} is in use by a request still under way")
            if request is None:
                request = codec.request(frame)
        except RequestRefusedError as refused:
            self._tell(refused.correlation_id, refused.code, str(refused))
            return None
        except MalformedRequestError as error:
            self._tell(error.correlation_id, ErrorCode.INVALID_REQUEST, str(error))
            raise
        charge = codec.memory(frame, size)
        budget = self.budget
        if budget.used + charge < budget.limit:
            budget.used += charge
        else:
            budget.take(charge)
        call = self.calls[correlation_id] = self._new_call(frame, request, charge)
        if self._order is not None:
            self._order[correlation_id] = None
        return call

    def answer(self, call: CallT, response: Response) -> list[bytes]:
        """Ends a call; the bytes that can be sent now."""
        return self._end(call, self.codec.encode(call.correlation_id, call.request, response))

    def answer_packed(self, call: CallT, head: bytes, body: bytes) -> list[bytes]:
        """As ``answer``, for a body that is packed already, in two parts."""
        return self._end(call, self.codec.encode_packed(call.correlation_id, call.request, head, body))

    def refuse(self, call: CallT, code: ErrorCode, text: str) -> list[bytes]:
        """Ends a call with an error as a whole."""
        return self._end(call, [self.codec.encode_refusal(call.correlation_id, code, text)])

    def finish(self, call: CallT) -> list[bytes]:
        """Ends a call that has no answer, or whose client is gone."""
        return self._end(call, [])

    def stop(self) -> None:
        """Takes no further requests; calls under way are answered."""
        self.closing = True
        self.pending.clear()
        self.pending_bytes = 0
        self._envelope = self._request = self._decoding = None

    def abandon(self) -> list[CallT]:
        """The client is gone: the calls that were under way, each of which ``finish`` ends.

        No further call is made, and what makes them is let go: it knows the connection, which knows this one. Objects in
        circles stay until all of the daemon's memory is walked, which it seldom is (``coordinator.runtime.collector``).
        """
        self.stop()
        self._new_call = _no_call
        calls, self.calls = list(self.calls.values()), {}
        return calls

    def _shake_hands(self, handshake: Handshake, data: bytes) -> bytes | None:
        said, rest = handshake.receive(data)
        self.outgoing += said
        self.buffered_bytes = handshake.buffered_bytes
        if rest is not None:
            self._handshake = None
            self.codec = handshake.codec
            self._order = {} if self.codec.answers_in_order else None
        return rest

    def _refuse(self, refused: RequestRefusedError) -> None:
        self.pending_bytes -= len(self.pending.popleft())
        self._envelope = self._request = self._decoding = None
        self._tell(refused.correlation_id, refused.code, str(refused))

    def _tell(self, correlation_id: int, code: ErrorCode, text: str) -> None:
        pieces = [self.codec.encode_refusal(correlation_id, code, text)]
        self.outgoing += pieces if self._order is None else self._in_order(correlation_id, pieces)
        self.refused.append(text)

    def _end(self, call: CallT, pieces: list[bytes]) -> list[bytes]:
        self.calls.pop(call.correlation_id, None)
        if self._order is not None:
            pieces = self._in_order(call.correlation_id, pieces)
        charge, call.charge = call.charge, 0
        if charge:
            budget = self.budget
            if budget.waiting or charge > budget.used:
                budget.give(charge)
            else:
                budget.used -= charge
        return pieces

    def _in_order(self, correlation_id: int, pieces: list[bytes]) -> list[bytes]:
        order = self._order
        assert order is not None
        if not self.is_next(correlation_id):
            order[correlation_id] = pieces
            self.held_back += sum(map(len, pieces))
            return []
        order.pop(correlation_id, None)
        while order and (held := order[key := next(iter(order))]) is not None:
            del order[key]
            self.held_back -= sum(map(len, held))
            pieces = pieces + held
        return pieces
