"""Frames: a 4-byte big-endian length and a msgpack array.

A request is ``[api_key, api_version, correlation_id, client_id, body]``. A response is ``[correlation_id, body]``, or
``[correlation_id, nil, error_code, error_message]`` when the request as a whole could not be served: an unknown API key or
version, or a body that does not parse. The length is checked before a byte of the frame is buffered.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Generator, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Final, NamedTuple

from msgpack import Packer, Unpacker, packb, unpackb
from msgpack.exceptions import UnpackException

from protocol.codec import MAX_ARRAY_ITEMS, MAX_STRING_BYTES
from protocol.errors import ErrorCode, ProtocolError
from protocol.limits import count_elements, max_request_bytes, max_request_elements
from protocol.long_bytes import BIN32

DEFAULT_MAX_FRAME_BYTES: Final = 64 * 1024 * 1024
MAX_BATCH_IN_FRAME: Final = DEFAULT_MAX_FRAME_BYTES - 1024 * 1024
"""Bytes of the largest record batch: what travels beside it has room in the same frame."""
MAX_RECORDS_IN_FRAME: Final = DEFAULT_MAX_FRAME_BYTES * 3 // 4
"""Bytes of records of many partitions, of each of which more is told."""
LENGTH_BYTES: Final = 4

NEVER_COUNTED_BYTES: Final = 4096
"""A request as small as this is decoded without a look at what it is made of."""
_ENVELOPE_BYTES: Final = 64
"""API key, version and correlation id lie in the first bytes of a request, however they are written."""
_ENVELOPE_FIELDS: Final = 5
_LONG_ARRAYS: Final = 16
"""A request within its bounds whose bytes may announce more long arrays than these is looked at before it is decoded."""
_COUNTED_PER_STEP: Final = 32_768
"""Elements that are counted in one step: about 3 ms."""
_LENGTH: Final = struct.Struct(">I")
_pack_length: Final = _LENGTH.pack
_PAIR: Final = b"\x92"
"""How a msgpack array of two begins."""
_LONG_BYTES: Final = bytes([BIN32])
"""How a msgpack byte string with a length of four bytes begins."""
UNCOPIED_BYTES: Final = 64 * 1024
"""Byte strings of a response from this length on are pieces of their own, and not copied."""
_PIECE_BYTES: Final = 64 * 1024
"""Memory that frames are received into, unless they are longer."""
_KEPT_BYTES: Final = 1024 * 1024
"""Memory for long frames beyond this size is given back when a short one comes."""
_TRUSTED_BYTES: Final = 8 * 1024 * 1024
"""Memory for a long frame that is taken once its length is there; beyond it grows with what comes."""
_KEPT_PACKER_BYTES: Final = 64 * 1024
"""A packer that has packed more is not kept: it holds on to as much memory."""


class FrameReader:
    """Cuts a stream of bytes into frames; pure, fed in pieces of any size.

    ``max_frame_bytes`` bounds the payload of a frame. What is buffered never exceeds one frame plus one piece. A payload
    that came in several pieces is given out as the ``bytearray`` it was collected in, without a further copy.
    """

    __slots__ = ("_buffer", "_length", "max_frame_bytes")

    def __init__(self, max_frame_bytes: int = DEFAULT_MAX_FRAME_BYTES) -> None:
        self.max_frame_bytes = max_frame_bytes
        self._buffer = bytearray()  # of the payload, once its length is known; else of the length
        self._length = 0  # of the payload that is half there; 0 when not even its length is

    @property
    def buffered_bytes(self) -> int:
        """Bytes held because their frame is not complete yet."""
        return len(self._buffer) + (LENGTH_BYTES if self._length else 0)

    def whole(self, data: bytes) -> bytes | None:
        """The payload when ``data`` is exactly one frame and nothing is buffered: what most small requests are.

        None otherwise; then ``feed`` has to look.
        """
        if self._length or self._buffer or len(data) <= LENGTH_BYTES or len(data) > self.max_frame_bytes:
            return None
        return data[LENGTH_BYTES:] if int.from_bytes(data[:LENGTH_BYTES]) == len(data) - LENGTH_BYTES else None

    def feed(self, data: bytes) -> Iterator[bytes | bytearray]:
        """The payloads that ``data`` completes, in order.

        Raises ``ProtocolError`` at the first length that is zero or above the bound; the stream is unusable from there,
        while the frames before it have been given out. The iterator must be exhausted before the next ``feed``.
        """
        position = 0
        if self._length:
            position = self._length - len(self._buffer)
            self._buffer += memoryview(data)[:position]
            if len(self._buffer) < self._length:
                return
            payload, self._buffer, self._length = self._buffer, bytearray(), 0
            yield payload
        elif self._buffer:
            data = bytes(self._buffer) + data
            self._buffer.clear()
        end = len(data)
        while end - position >= LENGTH_BYTES:
            (length,) = _LENGTH.unpack_from(data, position)
            if not 0 < length <= self.max_frame_bytes:
                raise ProtocolError(f"a frame of {length} bytes is outside the bounds of 1 to {self.max_frame_bytes}")
            start = position + LENGTH_BYTES
            position = start + length
            if position > end:
                self._length = length
                self._buffer += memoryview(data)[start:]
                return
            yield data[start:position]
        self._buffer += memoryview(data)[position:]


class FrameBuffer:
    """As ``FrameReader``, for who receives into memory that is there: long frames are copied nowhere on their way.

    ``space`` is where to receive next, ``received`` takes what came. Memory for long frames is used again for the next one:
    that saves its pages, and a payload is a view that is valid until the next call of ``space``. It holds one frame and one
    piece at most.
    """

    __slots__ = ("_end", "_length", "_long", "_piece", "_there", "max_frame_bytes")

    def __init__(self, max_frame_bytes: int = DEFAULT_MAX_FRAME_BYTES) -> None:
        self.max_frame_bytes = max_frame_bytes
        self._piece = bytearray(_PIECE_BYTES)
        self._end = 0  # of the bytes in it, which begin with a frame
        self._long = bytearray()
        self._length = 0  # of the long frame that is half there; 0 when there is none
        self._there = 0  # bytes of it

    def space(self) -> memoryview:
        """Where to receive, never empty: up to the end of a long frame, so that its successor has to be moved nowhere."""
        if self._length:
            if self._there == len(self._long):
                begun, self._long = self._long, bytearray(min(self._length, 2 * self._there))
                self._long[: self._there] = begun
            return memoryview(self._long)[self._there : self._length]
        return memoryview(self._piece)[self._end :]

    def received(self, count: int) -> Iterator[memoryview]:
        """The payloads that the first ``count`` bytes of the last ``space`` complete, in order.

        Raises ``ProtocolError`` as ``FrameReader.feed``; the iterator must be exhausted before the next ``space``.
        """
        if self._length:
            self._there += count
            if self._there == self._length:
                self._length = 0
                yield memoryview(self._long)[: self._there]
            return
        view, position, end = memoryview(self._piece), 0, self._end + count
        while end - position >= LENGTH_BYTES:
            (length,) = _LENGTH.unpack_from(view, position)
            if not 0 < length <= self.max_frame_bytes:
                raise ProtocolError(f"a frame of {length} bytes is outside the bounds of 1 to {self.max_frame_bytes}")
            start = position + LENGTH_BYTES
            if LENGTH_BYTES + length > len(view):
                self._begin_long(length, view[start:end])
                return
            if start + length > end:
                break
            position = start + length
            if len(self._long) > _KEPT_BYTES:
                self._long = bytearray()
            yield view[start:position]
        self._end = end - position
        if position:
            view[: self._end] = view[position:end]

    def _begin_long(self, length: int, begun: memoryview) -> None:
        if len(self._long) < (expected := min(length, _TRUSTED_BYTES)):
            self._long = bytearray(expected)
        self._long[: len(begun)] = begun
        self._end, self._length, self._there = 0, length, len(begun)


class OversizedRequestError(ProtocolError):
    """A request that is larger than its kind may be; the text names the bound.

    ``correlation_id`` is that of the request, which the refusal answers.
    """

    def __init__(self, correlation_id: int, text: str) -> None:
        super().__init__(text)
        self.correlation_id = correlation_id


class RequestFrame(NamedTuple):
    """The envelope of a request; ``body`` is still an unpacked array. A tuple: the daemon makes one for every request."""

    api_key: int
    api_version: int
    correlation_id: int
    client_id: str
    body: Any


@dataclass(frozen=True, slots=True)
class ResponseFrame:
    """The envelope of a response; ``error_code`` is not ``NONE`` when the request as a whole was refused."""

    correlation_id: int
    body: Any
    error_code: ErrorCode = ErrorCode.NONE
    error_message: str = ""


class _KeptPacker:
    """Packs values one after the other: to make a packer, as ``packb`` does at every call, costs more than most answers."""

    __slots__ = ("pack",)

    def __init__(self) -> None:
        self.pack = _new_packer()

    def packed(self, value: Any) -> bytes:
        """The msgpack bytes of a value that may be large."""
        packed = self.pack(value)
        if len(packed) > _KEPT_PACKER_BYTES:
            self.pack = _new_packer()
        return packed


def _new_packer() -> Callable[[Any], bytes]:
    """One that coordinators in several threads may share: msgpack's packer in Python lets others run while it packs, so it
    is not kept; the one in C does not."""
    if Packer.__module__ == "msgpack.fallback":
        return packb  # type: ignore[no-any-return]
    return Packer().pack  # type: ignore[no-any-return]


_answers: Final = _KeptPacker()


def encode_frame(payload: Any) -> bytes:
    """One frame around a plain msgpack value."""
    packed: bytes = packb(payload)
    return _pack_length(len(packed)) + packed


def encode_request(api_key: int, api_version: int, correlation_id: int, client_id: str, body: list[Any]) -> bytes:
    """The bytes of a request, length included."""
    return encode_frame((api_key, api_version, correlation_id, client_id, body))


def encode_response(correlation_id: int, body: list[Any]) -> bytes:
    """The bytes of a response, length included."""
    packed = _answers.packed((correlation_id, body))
    return _pack_length(len(packed)) + packed


def encode_response_in_pieces(correlation_id: int, body: Sequence[Any]) -> list[bytes]:
    """The same in pieces, to be sent one after the other: records of many megabytes are not copied.

    Only arrays around long byte strings are taken apart in Python, so a caller who knows that there are none is better off
    with ``encode_response``.
    """
    packer = Packer(autoreset=False)
    pieces: list[bytes] = []
    _pack_in_pieces((correlation_id, body), packer, pieces)
    pieces.append(packer.bytes())
    return [_pack_length(sum(map(len, pieces))), *pieces]


def _pack_in_pieces(value: Any, packer: Packer, pieces: list[bytes]) -> None:
    if type(value) is bytes and len(value) >= UNCOPIED_BYTES:
        pieces.append(packer.bytes() + _LONG_BYTES + _pack_length(len(value)))
        pieces.append(value)
        packer.reset()
    elif type(value) in (list, tuple) and _is_taken_apart(value):
        packer.pack_array_header(len(value))
        for item in value:
            _pack_in_pieces(item, packer, pieces)
    else:
        packer.pack(value)


def _is_taken_apart(array: Sequence[Any]) -> bool:
    for item in array:
        kind = type(item)
        if kind is list or kind is tuple or (kind is bytes and len(item) >= UNCOPIED_BYTES):
            return True
    return False


def packed_response_head(correlation_id: int, size: int) -> bytes:
    """How a response begins whose body is packed already and takes ``size`` bytes."""
    packed = _answers.pack(correlation_id)
    return _pack_length(1 + len(packed) + size) + _PAIR + packed


def encode_refusal(correlation_id: int, error_code: ErrorCode, error_message: str) -> bytes:
    """The bytes of a response that refuses its request as a whole."""
    return encode_frame((correlation_id, None, int(error_code), error_message[:1000]))


def unpack(payload: bytes | bytearray | memoryview) -> Any:
    """One msgpack value with every bound applied; arrays come as tuples (an empty one costs no memory).

    Maps and extension types are refused: no message has any, and a map of one byte on the wire is seventy in memory.
    """
    try:
        return unpackb(
            payload,
            use_list=False,
            max_str_len=MAX_STRING_BYTES,
            max_array_len=min(len(payload), MAX_ARRAY_ITEMS),  # memory is set aside for as many as are announced
            max_map_len=0,
            max_ext_len=0,
        )
    except (ValueError, TypeError, UnpackException, RecursionError) as error:
        raise ProtocolError(f"not a msgpack value within the bounds: {type(error).__name__}: {error}") from error


def decode_request(payload: bytes | bytearray) -> RequestFrame:
    """The envelope of a request. Raises ``ProtocolError`` when it is none, ``OversizedRequestError`` above its bounds."""
    if len(payload) > NEVER_COUNTED_BYTES:
        for _ in _check_bounds(payload):
            pass
    return _envelope(unpack(payload))


def decode_request_in_steps(payload: bytes | bytearray) -> Generator[None, None, RequestFrame]:
    """As ``decode_request``, for a request of so many elements that even to count them takes long."""
    for _ in _check_bounds(payload):
        yield
    yield
    return _envelope(unpack(payload))


def _envelope(frame: Any) -> RequestFrame:
    if type(frame) is not tuple or len(frame) < _ENVELOPE_FIELDS:
        raise ProtocolError("a request is an array of api key, api version, correlation id, client id and body")
    fields = frame if len(frame) == _ENVELOPE_FIELDS else frame[:_ENVELOPE_FIELDS]
    api_key, api_version, correlation_id, client_id, _ = fields
    if type(api_key) is not int or type(api_version) is not int:
        raise ProtocolError("api key and api version are integers")
    if type(correlation_id) is not int or not 0 <= correlation_id < 2**63:
        raise ProtocolError("a correlation id is an integer from 0 to 2**63 - 1")
    if type(client_id) is not str or len(client_id) > 1024:
        raise ProtocolError("a client id is a string of at most 1024 characters")
    return tuple.__new__(RequestFrame, fields)  # as _make does, which looks at their number once more


def _check_bounds(payload: bytes | bytearray) -> Iterator[None]:
    """Raises ``OversizedRequestError`` before anything is made of a request with too many bytes or elements.

    A request of many tiny values takes tens of times its size in memory, and long arrays that are announced take memory
    before their values have been looked for.
    """
    envelope = Unpacker(use_list=False, max_map_len=0, max_ext_len=0)
    envelope.feed(payload[:_ENVELOPE_BYTES])
    try:
        fields = envelope.read_array_header()
        api_key, _, correlation_id = (envelope.unpack() for _ in range(3))
    except (ValueError, TypeError, UnpackException):
        raise ProtocolError("a request begins with api key, api version and correlation id") from None
    if fields < _ENVELOPE_FIELDS or type(api_key) is not int or type(correlation_id) is not int:
        raise ProtocolError("a request begins with api key, api version and correlation id, and has five fields")
    size, most = len(payload), max_request_bytes(api_key, len(payload))
    if size > most:
        raise OversizedRequestError(correlation_id, f"a request of {size} bytes; of this kind {most} are allowed")
    most = max_request_elements(api_key)
    if size > most or payload.count(b"\xdc") + payload.count(b"\xdd") > _LONG_ARRAYS:
        found = yield from count_elements(payload, most, _COUNTED_PER_STEP)
        if found > most:
            raise OversizedRequestError(
                correlation_id,
                f"a request of {found} or more elements (an element is one msgpack value); of this kind {most} are "
                f"allowed: ask for less at a time",
            )


def decode_response(payload: bytes | bytearray | memoryview) -> ResponseFrame:
    """The envelope of a response. Raises ``ProtocolError`` when it is none."""
    frame = unpack(payload)
    if type(frame) is not tuple or len(frame) < 2 or type(frame[0]) is not int:
        raise ProtocolError("a response is an array of correlation id and body")
    if len(frame) >= 4 and frame[1] is None:
        code = frame[2] if frame[2] in ErrorCode.__members__.values() else ErrorCode.UNKNOWN_SERVER_ERROR
        return ResponseFrame(frame[0], None, ErrorCode(code), str(frame[3]))
    return ResponseFrame(frame[0], frame[1])
