"""Cohort's own wire as the daemon speaks it: frames, requests in msgpack, answers in any order.

What a request may cost is told by its bytes before anything is decoded, for decoding is what may take long.
"""

from __future__ import annotations

from collections.abc import Generator, Mapping
from typing import Final

from coordinator.server.server_connection import MalformedRequestError, Payload, RequestRefusedError
from protocol.codec import decode_message, decode_message_in_steps, encode_message, pack
from protocol.errors import ErrorCode, ProtocolError
from protocol.framing import (
    DEFAULT_MAX_FRAME_BYTES,
    LENGTH_BYTES,
    UNCOPIED_BYTES,
    FrameReader,
    OversizedRequestError,
    RequestFrame,
    decode_request,
    decode_request_in_steps,
    encode_refusal,
    encode_response,
    encode_response_in_pieces,
    packed_response_head,
)
from protocol.limits import least_elements
from protocol.messages import REQUESTS, ApiKey, Request, Response
from protocol.messages.groups import CARRY_ON, HeartbeatRequest
from protocol.messages.offsets import OffsetCommitResponse
from protocol.messages.records import FetchResponse
from protocol.messages.replication import ReplicaFetchResponse


class Spoken:
    """The requests that one port takes, by API key, and by key and version."""

    def __init__(self, requests: Mapping[int, type[Request]]) -> None:
        self.requests = requests
        self.by_version = {
            (key, version): request
            for key, request in requests.items()
            for version in range(request.versions[0], request.versions[1] + 1)
        }


CLIENT_PORT: Final = Spoken(REQUESTS)

LIGHT_BYTES: Final = 256
"""A request of so many bytes has the weight 1, as a heartbeat or the commit of some partitions."""
_BYTES_PER_WEIGHT: Final = 128
"""Beyond that, of the values that a request may be made of: some 10 partitions of a commit."""
_SMALL_BLOB_BYTES: Final = 4096
_SMALL_BLOB_BYTES_PER_WEIGHT: Final = 512
_BLOB_BYTES_PER_WEIGHT: Final = 16 * 1024
"""The same of larger requests that carry byte strings; what else they are made of is counted when it is decoded."""
_ELEMENTS_PER_WEIGHT: Final = 16
_COUNTED_ELEMENTS: Final = 4096

_RECORDS: Final = bytes((0x95, ApiKey.PRODUCE))
_BLOBS: Final = tuple(bytes((0x95, key)) for key in (ApiKey.PRODUCE, ApiKey.JOIN_GROUP, ApiKey.SYNC_GROUP))
"""How those begin that carry byte strings: an array of five, and their API key."""

_DECODED_AT_ONCE_BYTES: Final = 64 * 1024
"""A larger request is counted, unpacked and decoded in steps before it is handled, unless it is mostly records."""

_ITEMS_PER_STEP: Final = 8_192
"""Of a long array, that are decoded in one step: about 3 ms."""

_MEMORY_PER_BYTE: Final = {
    ApiKey.PRODUCE: 1,
    ApiKey.JOIN_GROUP: 4,
    ApiKey.SYNC_GROUP: 4,
    ApiKey.HEARTBEAT: 4,
    ApiKey.REPLICA_FETCH: 16,  # ten and more bytes name a partition
    ApiKey.FETCH: 64,  # four bytes make a partition that waits for records
}
_MEMORY_PER_BYTE_OF_OTHERS: Final = 32

_OF_ONE_GROUP: Final = frozenset(
    key
    for key, request in REQUESTS.items()
    if next(iter(request.__annotations__), "") in ("group_id", "transactional_id") and key != ApiKey.PRODUCE
)
"""The API keys of requests whose first field names their group, or their transactional id."""

_ENVELOPE_BYTES: Final = 16
"""At most, of an answer: its length, and its correlation id."""

_WITH_RECORDS: Final = (FetchResponse, ReplicaFetchResponse)

_HEARTBEAT: Final = bytes((0x95, ApiKey.HEARTBEAT))
_LEAST_HEARTBEAT_BYTES: Final = 9
"""No heartbeat is shorter, and the longest correlation id that is looked at ends before that."""
_HEARTBEAT_FIELDS: Final = len(HeartbeatRequest.__annotations__)
"""What comes behind them is of a newer client; it may be large, and is not kept."""
_SHORT_INTEGERS: Final = 0x80
"""Below it, a byte of msgpack is an integer."""
_INTEGERS: Final = {0xCC: 1, 0xCD: 2, 0xCE: 4}
"""The bytes of an unsigned integer that follow this one."""

_FRAMED_HEARTBEAT: Final = slice(LENGTH_BYTES, LENGTH_BYTES + 2)
_VERSION_AT: Final = LENGTH_BYTES + 2
_CORRELATION_ID_AT: Final = LENGTH_BYTES + 3

_CARRY_ON_PACKED: Final = pack(encode_message(CARRY_ON))


def carried_on(correlation_id: int) -> bytes:
    """``CARRY_ON`` as the answer to a request, length included."""
    return packed_response_head(correlation_id, len(_CARRY_ON_PACKED)) + _CARRY_ON_PACKED


class NativeCodec:
    """See ``Codec``."""

    answers_in_order = False
    light_bytes = LIGHT_BYTES

    def __init__(self, max_frame_bytes: int, spoken: Spoken = CLIENT_PORT) -> None:
        self._spoken = spoken
        self._by_version = spoken.by_version
        self._reader = reader = FrameReader(max_frame_bytes)
        self.whole = reader.whole
        self.feed = reader.feed
        self._last_rest: Payload = b""
        self._last_frame: RequestFrame | None = None
        self._last_request: HeartbeatRequest | None = None
        """The last heartbeat. The next one of the same member differs in its correlation id only."""
        self._last_stored: OffsetCommitResponse | None = None
        """The last short answer to a commit. The next one is equal where a member commits the same partitions."""
        self._stored = b""
        """The same, packed."""

    @property
    def buffered_bytes(self) -> int:
        """See ``Codec``."""
        return self._reader.buffered_bytes

    def weight(self, payload: Payload) -> int:
        """See ``Codec``."""
        size = len(payload)
        if size <= LIGHT_BYTES:
            return 1
        if payload[:2] not in _BLOBS:
            return 1 + (size - LIGHT_BYTES) // _BYTES_PER_WEIGHT
        return 1 + min(size, _SMALL_BLOB_BYTES) // _SMALL_BLOB_BYTES_PER_WEIGHT + size // _BLOB_BYTES_PER_WEIGHT

    def hidden_weight(self, payload: Payload) -> int:
        """See ``Codec``: of requests that carry byte strings, the elements beside them."""
        if len(payload) <= _SMALL_BLOB_BYTES or payload[:2] not in _BLOBS:
            return 0
        return least_elements(payload, _COUNTED_ELEMENTS) // _ELEMENTS_PER_WEIGHT

    def is_large(self, payload: Payload) -> bool:
        """See ``Codec``."""
        return len(payload) > _DECODED_AT_ONCE_BYTES and payload[:2] != _RECORDS

    def envelope(self, payload: Payload) -> RequestFrame:
        """See ``Codec``."""
        if payload[:2] == _HEARTBEAT and _LEAST_HEARTBEAT_BYTES <= len(payload) <= LIGHT_BYTES:
            return self._heartbeat(payload)
        try:
            return decode_request(payload)
        except OversizedRequestError as error:
            raise _refused(error) from error

    def _heartbeat(self, payload: Payload) -> RequestFrame:
        version, code = payload[2], payload[3]
        size = 0 if code < _SHORT_INTEGERS else _INTEGERS.get(code)
        if size is None or version >= _SHORT_INTEGERS:
            return decode_request(payload)
        correlation_id = int.from_bytes(payload[4 : 4 + size]) if size else code
        rest, last = payload[4 + size :], self._last_frame
        if last is not None and rest == self._last_rest and version == last.api_version:
            return tuple.__new__(RequestFrame, (last.api_key, version, correlation_id, last.client_id, last.body))
        frame = decode_request(payload)
        self._last_rest, self._last_frame, self._last_request = rest, frame, None
        return frame

    def repeated(self, data: bytes) -> int:
        """The correlation id of ``data`` if it is one whole frame with the ``last_heartbeat`` again, else -1.

        For a connection that has nothing of a frame yet. -1 as well for what only a closer look can tell.
        """
        last, rest = self._last_frame, self._last_rest
        if self._last_request is None or last is None or not data.endswith(rest):
            return -1
        end = len(data) - len(rest)
        size = end - _CORRELATION_ID_AT - 1
        if size < 0 or data[_FRAMED_HEARTBEAT] != _HEARTBEAT or data[_VERSION_AT] != last.api_version:
            return -1
        if int.from_bytes(data[:LENGTH_BYTES]) != len(data) - LENGTH_BYTES:
            return -1
        code = data[_CORRELATION_ID_AT]
        if code < _SHORT_INTEGERS:
            return -1 if size else code
        return int.from_bytes(data[_CORRELATION_ID_AT + 1 : end]) if _INTEGERS.get(code) == size else -1

    @property
    def last_heartbeat(self) -> HeartbeatRequest:
        """What ``repeated`` has found again."""
        assert self._last_request is not None, "there was one"
        return self._last_request

    @property
    def last_client_id(self) -> str:
        """The client id that came with it."""
        assert self._last_frame is not None, "there was one"
        return self._last_frame.client_id

    def request(self, frame: RequestFrame) -> Request:
        """See ``Codec``."""
        last = self._last_frame
        is_last = last is not None and frame.body is last.body and frame.api_key == last.api_key
        if is_last:
            if self._last_request is not None:
                return self._last_request
            self._last_frame = None  # what is no good request is not kept
        kind = self._by_version.get((frame.api_key, frame.api_version)) or _unknown_version(frame, self._spoken)
        try:
            request: Request = decode_message(kind, frame.body)
        except ProtocolError as error:
            raise MalformedRequestError(frame.correlation_id, str(error)) from error
        if is_last and len(frame.body) <= _HEARTBEAT_FIELDS and isinstance(request, HeartbeatRequest):
            self._last_frame, self._last_request = last, request
        return request

    def group_id(self, frame: RequestFrame) -> str | None:
        """See ``Codec``."""
        named = frame.api_key in _OF_ONE_GROUP and type(frame.body) is tuple and frame.body
        return frame.body[0] if named and type(frame.body[0]) is str else None

    def decode_in_steps(self, payload: Payload) -> Generator[None, None, tuple[RequestFrame, Request]]:
        """See ``Codec``."""
        try:
            frame = yield from decode_request_in_steps(payload)
        except OversizedRequestError as error:
            raise _refused(error) from error
        yield
        kind = self._by_version.get((frame.api_key, frame.api_version)) or _unknown_version(frame, self._spoken)
        try:
            request: Request = yield from decode_message_in_steps(kind, frame.body, _ITEMS_PER_STEP)
        except ProtocolError as error:
            raise MalformedRequestError(frame.correlation_id, str(error)) from error
        return frame, request

    def memory(self, frame: RequestFrame, size: int) -> int:
        """See ``Codec``."""
        return size * _MEMORY_PER_BYTE.get(frame.api_key, _MEMORY_PER_BYTE_OF_OTHERS)  # type: ignore[call-overload, no-any-return]

    def encode(self, correlation_id: int, request: Request, response: Response) -> list[bytes]:
        """See ``Codec``. Records of an answer are not copied where they are long."""
        if response is CARRY_ON:
            return [carried_on(correlation_id)]
        if isinstance(response, OffsetCommitResponse) and response == self._last_stored:
            return [packed_response_head(correlation_id, len(self._stored)) + self._stored]
        body = encode_message(response)
        if isinstance(response, _WITH_RECORDS) and _has_long_records(response):
            pieces = encode_response_in_pieces(correlation_id, body)
        else:
            pieces = [encode_response(correlation_id, body)]
        size = sum(map(len, pieces)) - LENGTH_BYTES
        if isinstance(response, OffsetCommitResponse) and size <= LIGHT_BYTES:
            self._last_stored, self._stored = response, pack(body)
        return pieces if size <= DEFAULT_MAX_FRAME_BYTES else [_too_large(correlation_id, request, size)]

    def encode_packed(self, correlation_id: int, request: Request, head: bytes, body: bytes) -> list[bytes]:
        """See ``Codec``."""
        size = len(head) + len(body)
        if size > DEFAULT_MAX_FRAME_BYTES - _ENVELOPE_BYTES:
            return [_too_large(correlation_id, request, size)]
        return [packed_response_head(correlation_id, size) + head, body]

    def encode_refusal(self, correlation_id: int, code: ErrorCode, text: str) -> bytes:
        """See ``Codec``."""
        return encode_refusal(correlation_id, code, text)


def _refused(error: OversizedRequestError) -> RequestRefusedError:
    return RequestRefusedError(error.correlation_id, ErrorCode.INVALID_REQUEST, str(error))


def _unknown_version(frame: RequestFrame, spoken: Spoken) -> type[Request]:
    """Raises ``RequestRefusedError``; but ApiVersions is answered whatever the version, for it tells what is spoken."""
    kind = spoken.requests.get(frame.api_key)
    if kind is None:
        known = ", ".join(f"{entry.api_key.value} {entry.api_key.name}" for entry in spoken.requests.values())
        text = f"api key {frame.api_key} is unknown here; known are {known}"
        raise RequestRefusedError(frame.correlation_id, ErrorCode.UNSUPPORTED_VERSION, text)
    if frame.api_key != ApiKey.API_VERSIONS:
        lowest, highest = kind.versions
        text = f"{kind.__name__} version {frame.api_version} is unknown here; {lowest} to {highest} are spoken"
        raise RequestRefusedError(frame.correlation_id, ErrorCode.UNSUPPORTED_VERSION, text)
    return kind


def _has_long_records(response: FetchResponse | ReplicaFetchResponse) -> bool:
    return any(len(entry.records) >= UNCOPIED_BYTES for topic in response.responses for entry in topic.partitions)


def _too_large(correlation_id: int, request: Request, size: int) -> bytes:
    """A client hangs up on such a frame, and would ask for it again and again."""
    text = (
        f"the answer to {type(request).__name__} takes {size} bytes, at most {DEFAULT_MAX_FRAME_BYTES} are allowed; "
        f"ask for less at a time"
    )
    return encode_refusal(correlation_id, ErrorCode.INVALID_REQUEST, text)
