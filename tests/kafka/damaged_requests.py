"""Requests of every key and version, most of them damaged, and connections that send them and judge what comes back.

What becomes of a request is one of four: it is answered, it closes its connection, it waits, or it wants no answer. Anything
else is a ``Violation``: an answer that is none of its kind, that belongs to no request, or out of order; and silence.
"""

from __future__ import annotations

import asyncio
import random
from collections import Counter, deque
from collections.abc import Mapping, Sequence
from typing import Final, NamedTuple

from protocol.errors import ProtocolError
from protocol.framing import FrameReader
from protocol.kafka.decoding import decode
from protocol.kafka.encoding import encode
from protocol.kafka.headers import (
    API_VERSIONS,
    RequestHeader,
    decode_request_header,
    decode_response_header,
    encode_request_header,
)
from protocol.messages import ApiKey
from tests.coordinator.kafka.any_request import NAMES, any_structure, damaged
from tests.coordinator.kafka.wire import framed, request_kind, response_kind

MAY_WAIT: Final = frozenset({ApiKey.JOIN_GROUP, ApiKey.SYNC_GROUP})
"""Requests that wait for other members; others are answered at once, or within the waits that the daemon is started with."""
_UNDAMAGED: Final = 0.2
_ONE_BYTE: Final = 0.4
"""Share of requests in which a byte of the body is another: few of them close their connection, so they come further."""
_DAMAGED_HEADER: Final = 0.1
_KEPT: Final = 20
"""Bodies of each key and version that requests are made of; now and then one is drawn anew."""
_DRAWN_ANEW: Final = 0.05
_BATCH: Final = 16
_PATIENCE_S: Final = 0.3
_SILENCE_S: Final = 30.0
_SENTINEL: Final = RequestHeader(API_VERSIONS, 0, 0x5E1F, "sentinel")


class Violation(Exception):
    """The daemon did something that no damaged request may bring about; the text says which and what."""


class Served(NamedTuple):
    """The versions of a key that the daemon serves."""

    first: int
    last: int


class Asked(NamedTuple):
    """A request as it is sent, and its header as far as it can be read and is served: None has to close the connection."""

    payload: bytes
    header: RequestHeader | None


class Drawn:
    """Requests by chance; the same for a seed."""

    def __init__(self, served: Mapping[int, Served], seed: int) -> None:
        self._served = served
        self._draw = random.Random(seed)
        self._kinds = [(key, version) for key, (first, last) in served.items() for version in range(first, last + 1)]
        self._bodies: dict[tuple[int, int], list[bytes]] = {}
        self._number = 0

    def next(self) -> Asked:
        """Another one."""
        draw = self._draw
        key, version = draw.choice(self._kinds)
        self._number = (self._number + 1) & 0x7FFFFFFF
        header = encode_request_header(RequestHeader(key, version, self._number, draw.choice(NAMES)))
        body, chance = self._body(key, version), draw.random()
        if chance < _UNDAMAGED or not body:
            return self.asked(header + body)
        if chance < _UNDAMAGED + _ONE_BYTE:
            changed = bytearray(body)
            changed[draw.randrange(len(body))] = draw.choice((0, 1, 2, 0x7F, 0x80, 0xFF, draw.randrange(256)))
            return self.asked(header + changed)
        if chance < _UNDAMAGED + _ONE_BYTE + _DAMAGED_HEADER:
            return self.asked(damaged(header + body, draw))
        return self.asked(header + damaged(body, draw))

    def asked(self, payload: bytes) -> Asked:
        """The request that these bytes are."""
        try:
            header, _ = decode_request_header(payload)
        except ProtocolError:
            return Asked(payload, None)
        served = self._served.get(header.api_key)
        if served is not None and served.first <= header.api_version <= served.last:
            return Asked(payload, header)
        # Only ApiVersions is answered whatever its version, in form 0.
        return Asked(payload, header._replace(api_version=0) if header.api_key == API_VERSIONS else None)

    def _body(self, key: int, version: int) -> bytes:
        draw, kept = self._draw, self._bodies.setdefault((key, version), [])
        if len(kept) < _KEPT or draw.random() < _DRAWN_ANEW:
            kept.append(b"".join(encode(any_structure(request_kind(key), version, draw), version)))
            del kept[:-_KEPT]
        return draw.choice(kept)


class Judging(asyncio.Protocol):
    """One connection: sends some requests and a last one that is sound, and judges what comes back until that or the end."""

    def __init__(self, requests: Sequence[Asked], fates: Counter[str]) -> None:
        self.open = deque(requests)
        """Requests of which nothing has come yet."""
        self.over: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._fates = fates
        self._frames = FrameReader()
        self._transport: asyncio.Transport | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport
        sentinel = framed(encode_request_header(_SENTINEL))
        transport.write(b"".join([*(framed(each.payload) for each in self.open), sentinel]))

    def data_received(self, data: bytes) -> None:
        if self.over.done():
            return
        try:
            for frame in self._frames.feed(data):
                self._judge(bytes(frame))
        except (Violation, ProtocolError) as error:
            self.over.set_exception(error if isinstance(error, Violation) else Violation(f"no frame came: {error}"))

    def connection_lost(self, exc: Exception | None) -> None:
        if not self.over.done():
            if self.open:  # what is behind the one that closed it was not looked at
                self.open.popleft()
                self._fates["closed"] += 1
            self.over.set_result(None)

    def give_up(self) -> None:
        """The first one waits, which it may: what is behind it is for another connection."""
        waiting = self.open.popleft()
        self._fates["waits"] += 1
        assert waiting.header is not None

    def abort(self) -> None:
        if self._transport is not None:
            self._transport.abort()

    def _judge(self, frame: bytes) -> None:
        number = int.from_bytes(frame[:4], signed=True)
        while self.open:
            asked = self.open.popleft()
            if asked.header is not None and asked.header.correlation_id == number:
                self._fates["answered"] += 1
                _must_be_an_answer(asked, asked.header, frame)
                return
            if asked.header is None or asked.header.api_key != ApiKey.PRODUCE:
                raise Violation(f"no answer came to {asked.payload.hex()}, but one with number {number}")
            self._fates["wants no answer"] += 1
        if number != _SENTINEL.correlation_id:
            raise Violation(f"an answer belongs to no request: {frame.hex()}")
        _must_be_an_answer(Asked(b"", _SENTINEL), _SENTINEL, frame)
        self.over.set_result(None)
        self.abort()


def _must_be_an_answer(asked: Asked, header: RequestHeader, frame: bytes) -> None:
    key, version = header.api_key, header.api_version
    try:
        _, at = decode_response_header(key, version, frame)
        answer = decode(response_kind(key), version, frame, at)
        if b"".join(encode(answer, version)) == frame[at:]:
            return
        why = "it has bytes that its version does not"
    except (ProtocolError, ValueError) as error:
        why = str(error)
    raise Violation(f"the answer to {asked.payload.hex()} (key {key}, version {version}) is none: {why}: {frame.hex()}")


async def sent(address: str, requests: deque[Asked], drawn: Drawn, fates: Counter[str]) -> None:
    """Has some requests judged over a connection of their own: those of ``requests``, to which goes back what was not
    looked at, or else new ones. Raises ``Violation``, and ``ConnectionError`` when the daemon takes no connections."""
    batch = [requests.popleft() if requests else drawn.next() for _ in range(_BATCH)]
    host, _, port = address.rpartition(":")
    loop = asyncio.get_running_loop()
    _, judging = await loop.create_connection(lambda: Judging(batch, fates), host, int(port))
    try:
        begun, left = loop.time(), len(judging.open)
        while not judging.over.done():
            await asyncio.wait([judging.over], timeout=_PATIENCE_S)
            if len(judging.open) != left:
                begun, left = loop.time(), len(judging.open)
            elif not judging.over.done():
                first = judging.open[0] if judging.open else None
                if first is not None and first.header is not None and first.header.api_key in MAY_WAIT:
                    judging.give_up()
                    break
                if loop.time() - begun > _SILENCE_S:
                    told = "the last one" if first is None else first.payload.hex()
                    raise Violation(f"nothing came for {_SILENCE_S:.0f} s of {told}")
        if judging.over.done():
            judging.over.result()
        requests.extend(judging.open)
    finally:
        judging.abort()
