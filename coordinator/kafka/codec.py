"""Kafka's wire as a connection of the daemon speaks it: frames, headers, answers in the order of the requests.

A client may use a correlation id twice, so calls are known by numbers of their own. Whatever is wrong with a request ends
its connection, as Kafka has no answer that fits any request; the log says what it was. A commit that is too large has an
answer: see ``_MAX_BYTES_OF_STORED_COMMITS``.
"""

from __future__ import annotations

from collections.abc import Generator, Mapping
from typing import Final, cast

from coordinator.kafka.calls import Api, KafkaCall, KafkaRequest, KafkaResponse
from coordinator.kafka.fetch_sessions import MAX_PARTITIONS
from coordinator.log_output import get_logger
from coordinator.server.server_connection import Payload
from protocol.errors import ErrorCode, ProtocolError
from protocol.framing import DEFAULT_MAX_FRAME_BYTES, LENGTH_BYTES, FrameReader, RequestFrame
from protocol.kafka.decoding import TooManyItemsError, decode, decode_in_steps, read_varint
from protocol.kafka.encoding import encode
from protocol.kafka.headers import API_VERSIONS, decode_request_header, encode_response_header
from protocol.kafka.messages import APIS
from protocol.kafka.schema import Message
from protocol.messages import ApiKey, Request, Response

log = get_logger()

_LIGHT_BYTES: Final = 256
_BYTES_PER_WEIGHT: Final = 128
_BLOB_BYTES_PER_WEIGHT: Final = 16 * 1024
_BLOBS: Final = tuple(key.to_bytes(2) for key in (ApiKey.PRODUCE, ApiKey.JOIN_GROUP, ApiKey.SYNC_GROUP))
"""How requests begin that carry byte strings: the others are made of many small things."""
_LARGE_BYTES: Final = 64 * 1024

_MEMORY_PER_BYTE: Final = {
    ApiKey.PRODUCE: 1,
    ApiKey.JOIN_GROUP: 16,
    ApiKey.SYNC_GROUP: 16,
    ApiKey.HEARTBEAT: 8,
    ApiKey.FETCH: 32,
}
_MEMORY_PER_BYTE_OF_OTHERS: Final = 48
"""What is made of the smallest structures."""
_MEMORY_PER_BYTE_OF_TEXTS: Final = 8
"""Of commits, above ``_MAX_BYTES_OF_OTHERS``: without texts the most items that one may have take less."""

_MAX_BYTES: Final = {
    ApiKey.PRODUCE: 2**31,  # max_frame_bytes bounds these
    ApiKey.OFFSET_COMMIT: 2**31,
    ApiKey.TXN_OFFSET_COMMIT: 2**31,
    ApiKey.SYNC_GROUP: 24 * 1024 * 1024,  # the assignments of a group may have 16 MiB
    ApiKey.JOIN_GROUP: 2 * 1024 * 1024,  # the metadata of a member may have 1 MiB
}
_MAX_BYTES_OF_OTHERS: Final = 1024 * 1024
"""Largest requests: of 10,000 partitions the longest have a third of it. Made of the smallest things there are, one keeps
the loop for some tens of ms."""

_MAX_ITEMS: Final = {
    ApiKey.SYNC_GROUP: 65_536,  # the members of a group (group_max_size)
    ApiKey.JOIN_GROUP: 1_024,
}
_MAX_ITEMS_OF_OTHERS: Final = 2 * MAX_PARTITIONS
"""Most items of all arrays of a request: partitions, each of which may have a topic of its own."""

_COMMITS: Final = frozenset({ApiKey.OFFSET_COMMIT, ApiKey.TXN_OFFSET_COMMIT})
_MAX_BYTES_OF_STORED_COMMITS: Final = 16 * 1024 * 1024
"""Largest commit whose texts are read: of 4,000 partitions each may have the longest (``offset_metadata_max_bytes``).

Memory is the bound: decoded, the texts of a commit may take eight times its bytes. Kafka stores the offsets of a commit as
one batch of its log, of 1 MiB unless it is set otherwise, so that it refuses such commits as well, at each partition (with
UNKNOWN_SERVER_ERROR since 4.0, which says less than the code of before). So does the codec: a client that is told no code
would repeat its commit for ever.
"""
_MAX_ITEMS_OF_REFUSED_COMMITS: Final = 65_536
"""Most items of a commit that is told a code: 1 MiB of Kafka's log has offsets of some 22,000 partitions, each with a topic
of its own, at most. With more items the connection closes."""

_OF_ONE_GROUP: Final = frozenset(
    {
        *(ApiKey.JOIN_GROUP, ApiKey.SYNC_GROUP, ApiKey.HEARTBEAT, ApiKey.LEAVE_GROUP, ApiKey.OFFSET_COMMIT),
        ApiKey.OFFSET_DELETE,
    }
)
"""Those whose first field names their group."""


class KafkaCodec:
    """See ``coordinator.server.server_connection.Codec``; ``apis`` are those that the port serves."""

    answers_in_order = True
    light_bytes = _LIGHT_BYTES

    def __init__(self, max_frame_bytes: int, apis: Mapping[int, Api]) -> None:
        self._apis = apis
        self._reader = reader = FrameReader(max_frame_bytes)
        self.whole = reader.whole
        self.feed = reader.feed
        self._requests = 0

    @property
    def buffered_bytes(self) -> int:
        """See ``Codec``."""
        return self._reader.buffered_bytes

    def weight(self, payload: Payload) -> int:
        """See ``Codec``."""
        size = len(payload)
        if size <= _LIGHT_BYTES:
            return 1
        if payload[:2] not in _BLOBS:
            return 1 + (size - _LIGHT_BYTES) // _BYTES_PER_WEIGHT
        return 1 + size // _BLOB_BYTES_PER_WEIGHT

    def hidden_weight(self, payload: Payload) -> int:
        """See ``Codec``."""
        return 0

    def is_large(self, payload: Payload) -> bool:
        """See ``Codec``."""
        return len(payload) > _LARGE_BYTES and payload[:2] not in _BLOBS

    def envelope(self, payload: Payload) -> RequestFrame:
        """See ``Codec``. The body is the payload, where the message begins in it, and the client's correlation id."""
        payload = bytes(payload)
        header, at = decode_request_header(payload)
        most = _MAX_BYTES.get(header.api_key, _MAX_BYTES_OF_OTHERS)  # type: ignore[call-overload]
        if len(payload) > most:
            raise ProtocolError(
                f"a request of {len(payload)} bytes is larger than {_name(header.api_key)} may be, {most}"
            )
        self._requests += 1
        body = payload, at, header.correlation_id
        return RequestFrame(header.api_key, header.api_version, self._requests, header.client_id or "", body)

    def request(self, frame: RequestFrame) -> Request:
        """See ``Codec``."""
        payload, at, correlation_id = frame.body
        api, version = self._apis.get(frame.api_key), frame.api_version
        if api is None or not api.first <= version <= api.last:
            return self._unknown(frame, api)
        return KafkaRequest(api, version, correlation_id, _decoded(api, version, payload, at))

    def _unknown(self, frame: RequestFrame, api: Api | None) -> KafkaRequest:
        """Raises ``ProtocolError``; but ApiVersions is answered whatever the version, for it tells what is served."""
        name = _name(frame.api_key)
        if api is None:
            raise ProtocolError(f"{name} is not served here")
        if frame.api_key != API_VERSIONS:
            raise ProtocolError(f"{name} version {frame.api_version} is not served here, {api.first} to {api.last} are")
        return KafkaRequest(api, 0, frame.body[2], api.translator.request(), is_unknown_version=True)

    def group_id(self, frame: RequestFrame) -> str | None:
        """See ``Codec``."""
        if frame.api_key not in _OF_ONE_GROUP:
            return None
        payload, at, _ = frame.body
        try:
            if frame.api_version >= APIS[frame.api_key].flexible_from:
                length, at = read_varint(payload, at)
                length -= 1
            else:
                length, at = int.from_bytes(payload[at : at + 2]), at + 2
            return str(payload[at : at + length], "utf-8") if length > 0 else None
        except (IndexError, UnicodeDecodeError, ProtocolError):
            return None  # to be found, and told, when the request is decoded

    def decode_in_steps(self, payload: Payload) -> Generator[None, None, tuple[RequestFrame, Request]]:
        """See ``Codec``."""
        frame = self.envelope(payload)
        yield
        whole, at, correlation_id = frame.body
        api, version = self._apis.get(frame.api_key), frame.api_version
        if api is None or not api.first <= version <= api.last:
            return frame, self._unknown(frame, api)
        if frame.api_key in _COMMITS:
            api, message = yield from _commit_in_steps(api, version, whole, at)
        else:
            most = _max_items(frame.api_key)
            message = yield from decode_in_steps(api.translator.request, version, whole, at, max_items=most)
        return frame, KafkaRequest(api, version, correlation_id, message)

    def memory(self, frame: RequestFrame, size: int) -> int:
        """See ``Codec``."""
        if size > _MAX_BYTES_OF_OTHERS and frame.api_key in _COMMITS:
            texts = min(size, _MAX_BYTES_OF_STORED_COMMITS) - _MAX_BYTES_OF_OTHERS
            return _MAX_BYTES_OF_OTHERS * _MEMORY_PER_BYTE_OF_OTHERS + texts * _MEMORY_PER_BYTE_OF_TEXTS
        return size * _MEMORY_PER_BYTE.get(frame.api_key, _MEMORY_PER_BYTE_OF_OTHERS)  # type: ignore[call-overload, no-any-return]

    def encode(self, correlation_id: int, request: Request, response: Response) -> list[bytes]:
        """See ``Codec``."""
        kafka = cast("KafkaRequest", request)
        pieces, size = _pieces(kafka, cast("KafkaResponse", response).message)
        if size > DEFAULT_MAX_FRAME_BYTES:
            text = f"the answer takes more than {DEFAULT_MAX_FRAME_BYTES} bytes; ask for less at a time"
            refusal = kafka.api.translator.refusal(kafka.message, kafka.version, ErrorCode.INVALID_REQUEST, text)
            pieces, _ = _pieces(kafka, refusal)
        return pieces

    def encode_packed(self, correlation_id: int, request: Request, head: bytes, body: bytes) -> list[bytes]:
        """See ``Codec``: an answer that is encoded already, in two parts, the header not among them."""
        kafka = cast("KafkaRequest", request)
        header = encode_response_header(kafka.api.key, kafka.version, kafka.correlation_id)
        return [(len(header) + len(head) + len(body)).to_bytes(LENGTH_BYTES) + header + head, body]

    def encode_refusal(self, correlation_id: int, code: ErrorCode, text: str) -> bytes:
        """Nothing: see the module text. A refused request ends its connection, and one that is a call refuses in its way."""
        return b""


def _pieces(request: KafkaRequest, answer: Message) -> tuple[list[bytes], int]:
    """The frame of an answer, and how many bytes are in it."""
    header = encode_response_header(request.api.key, request.version, request.correlation_id)
    pieces = encode(answer, request.version)
    if len(pieces) == 1:
        payload = header + pieces[0]
        return [len(payload).to_bytes(LENGTH_BYTES) + payload], len(payload)
    size = len(header) + sum(map(len, pieces))
    pieces[0] = size.to_bytes(LENGTH_BYTES) + header + pieces[0]
    return pieces, size


def _max_items(api_key: int) -> int:
    return _MAX_ITEMS.get(api_key, _MAX_ITEMS_OF_OTHERS)  # type: ignore[call-overload, no-any-return]


def _decoded(api: Api, version: int, payload: bytes, at: int) -> Message:
    return decode(api.translator.request, version, payload, at, max_items=_max_items(api.key))


def _commit_in_steps(api: Api, version: int, payload: bytes, at: int) -> Generator[None, None, tuple[Api, Message]]:
    """A commit, and what serves it: one that is too large is refused, and its texts are not read."""
    kind, size, most = api.translator.request, len(payload), _MAX_ITEMS_OF_OTHERS
    if size <= _MAX_BYTES_OF_STORED_COMMITS:
        try:
            return api, (yield from decode_in_steps(kind, version, payload, at, max_items=most))
        except TooManyItemsError:
            why = f"it names more than {most} topics and partitions"
    else:
        why = f"it has {size} bytes, of at most {_MAX_BYTES_OF_STORED_COMMITS}"
    most = _MAX_ITEMS_OF_REFUSED_COMMITS
    names = yield from decode_in_steps(kind, version, payload, at, max_items=most, passed_over="committed_metadata")
    return _refusing(
        api, f"{why}; none of its offsets is stored: commit fewer at a time, or with shorter metadata"
    ), names


def _refusing(api: Api, reason: str) -> Api:
    """Serves a commit by refusing it, to each of its partitions."""

    def handle(call: KafkaCall) -> None:
        log.debug("request_refused", peer=call.connection.peer, reason=reason)
        call.refuse(ErrorCode.INVALID_COMMIT_OFFSET_SIZE, reason)

    return api._replace(translator=api.translator._replace(handle=handle))


def _name(api_key: int) -> str:
    known = APIS.get(api_key)
    return f"API key {api_key}" if known is None else known.name
