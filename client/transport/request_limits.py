"""The limits of a request: one that is too large or cannot be read is found before it is sent; many entries are cut up.

A frame that breaks a bound of the protocol cannot be read, so it cannot be answered either: the daemon hangs up, and a
client would try again until its deadline and then blame the network. Requests with more entries than a daemon takes at once
become several, whose answers are put together again.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Sequence
from typing import Any, Final, TypeVar

from client.errors import InvalidRequestError
from protocol.codec import MAX_ARRAY_ITEMS, MAX_STRING_BYTES, decode_message, encode_message
from protocol.errors import ProtocolError
from protocol.framing import LENGTH_BYTES, decode_request, encode_request
from protocol.limits import max_request_elements
from protocol.messages import ApiKey, Request, Response
from protocol.messages.groups import HeartbeatRequest, SyncGroupRequest
from protocol.messages.records import FetchRequest
from protocol.messages.transactions import EndTxnRequest

ResponseT = TypeVar("ResponseT", bound=Response)

_FEW: Final = 100
"""So few entries fit in a request of any kind, whatever they hold."""

_OTHER_ELEMENTS: Final = 32
"""Elements of a request beside its entries: the frame and the other fields."""

_ENTRIES: Final = {
    ApiKey.METADATA: ("topics", "topics"),
    ApiKey.LIST_OFFSETS: ("topics", "topics"),
    ApiKey.OFFSET_COMMIT: ("topics", "topics"),
    ApiKey.TXN_OFFSET_COMMIT: ("topics", "topics"),
    ApiKey.OFFSET_FETCH: ("topics", "topics"),
    ApiKey.OFFSET_DELETE: ("topics", "topics"),
    ApiKey.DELETE_RECORDS: ("topics", "topics"),
    ApiKey.CREATE_TOPICS: ("topics", "topics"),
    ApiKey.DELETE_TOPICS: ("topic_names", "responses"),
    ApiKey.CREATE_PARTITIONS: ("topics", "results"),
    ApiKey.DESCRIBE_CONFIGS: ("topic_names", "results"),
    ApiKey.INCREMENTAL_ALTER_CONFIGS: ("resources", "responses"),
    ApiKey.DESCRIBE_LOG_DIRS: ("topic_names", "results"),
    ApiKey.LEAVE_GROUP: ("members", "members"),
    ApiKey.DESCRIBE_PRODUCERS: ("topics", "topics"),
    ApiKey.ALTER_PARTITION_REASSIGNMENTS: ("topics", "responses"),
    ApiKey.LIST_PARTITION_REASSIGNMENTS: ("topics", "topics"),
    ApiKey.ELECT_LEADERS: ("topic_partitions", "replica_election_results"),
}
"""Where a request has its entries, and where the answer has what became of each."""

_INNER: Final = {
    ApiKey.LIST_OFFSETS: "partitions",
    ApiKey.OFFSET_COMMIT: "partitions",
    ApiKey.TXN_OFFSET_COMMIT: "partitions",
    ApiKey.OFFSET_FETCH: "partition_indexes",
    ApiKey.OFFSET_DELETE: "partition_indexes",
    ApiKey.DELETE_RECORDS: "partitions",
    ApiKey.DESCRIBE_PRODUCERS: "partition_indexes",
    ApiKey.ALTER_PARTITION_REASSIGNMENTS: "partitions",
    ApiKey.LIST_PARTITION_REASSIGNMENTS: "partition_indexes",
    ApiKey.ELECT_LEADERS: "partitions",
}
"""Where an entry, which is a topic, has entries of its own; a topic may go on in the next piece."""


def pieces_of(request: Request) -> Sequence[Any]:
    """The request itself when it fits, or else several of its kind that do, in the order of its entries."""
    if request.api_key not in _ENTRIES:
        return (request,)
    field = _ENTRIES[request.api_key][0]
    entries: Sequence[Any] | None = getattr(request, field)
    if not entries:
        return (request,)
    inner = _INNER.get(request.api_key, "")
    if len(entries) + (sum(len(getattr(entry, inner)) for entry in entries) if inner else 0) <= _FEW:
        return (request,)
    cut = _cut(entries, inner, max_request_elements(request.api_key) - _OTHER_ELEMENTS)
    return [dataclasses.replace(request, **{field: tuple(piece)}) for piece in cut]  # type: ignore[type-var]


def joined(request: Request, answers: Sequence[ResponseT]) -> ResponseT:
    """One answer to ``request`` made of those to its pieces: with an error for the request as a whole, the first such."""
    field = _ENTRIES[request.api_key][1]
    failed = next((answer for answer in answers if getattr(answer, "error_code", 0)), None)
    if failed is not None:
        return failed
    first = next((answer for answer in answers if getattr(answer, "error_message", "")), answers[0])
    return dataclasses.replace(first, **{field: tuple(entry for answer in answers for entry in getattr(answer, field))})  # type: ignore[type-var]


def _cut(entries: Sequence[Any], inner: str, most: int) -> Iterator[list[Any]]:
    piece: list[Any] = []
    taken = 0
    for entry, elements in _parts(entries, inner, most):
        if piece and taken + elements > most:
            yield piece
            piece, taken = [], 0
        piece.append(entry)
        taken += elements
    yield piece


def _parts(entries: Sequence[Any], inner: str, most: int) -> Iterator[tuple[Any, int]]:
    """Entries with the number of their elements; a topic with many partitions comes as several with fewer each."""
    for entry in entries:
        if not inner:
            yield entry, _elements(_encoded(entry))
            continue
        inners = getattr(entry, inner)
        at_once = max(1, most // (4 * max((_elements(_encoded(each)) for each in inners[:_FEW]), default=1)))
        for start in range(0, max(1, len(inners)), at_once):
            part = dataclasses.replace(entry, **{inner: inners[start : start + at_once]})
            yield part, _elements(_encoded(part))


def _encoded(value: Any) -> Any:
    return encode_message(value) if dataclasses.is_dataclass(value) else value


def _elements(value: Any) -> int:
    return 1 + sum(map(_elements, value)) if isinstance(value, list | tuple) else 1


_MAX_CLIENT_ID_CHARS: Final = 1024
_MAX_UTF8_PER_CHAR: Final = 4
_MADE_BY_CLIENTS: Final = (EndTxnRequest, FetchRequest, HeartbeatRequest, SyncGroupRequest)
"""What is sent most, or is large: clients make these of values that they have checked or got from a daemon."""


def checked_frame(request: Request, correlation_id: int, client_id: str) -> bytes:
    """The bytes of a request.

    Raises ``InvalidRequestError`` naming the field whose text is longer than ``MAX_STRING_BYTES`` in UTF-8 or has no UTF-8
    at all (half a surrogate pair), whose list has more than ``MAX_ARRAY_ITEMS`` entries, or whose value is of another type
    than the daemon expects.
    """
    try:
        body = encode_message(request)
        frame = encode_request(request.api_key, request.versions[1], correlation_id, client_id, body)
    except UnicodeEncodeError as error:
        raise InvalidRequestError(_explained(request, client_id)) from error
    except (AttributeError, TypeError, OverflowError) as error:
        raise InvalidRequestError(f"{type(request).__name__} cannot be sent: {error}; nothing was sent") from error
    if (len(frame) > MAX_STRING_BYTES and _breaks_bound(body)) or len(client_id) > _MAX_CLIENT_ID_CHARS:
        raise InvalidRequestError(_explained(request, client_id))
    if not isinstance(request, _MADE_BY_CLIENTS):
        _read_as_daemons_do(request, frame)
    return frame


def _read_as_daemons_do(request: Request, frame: bytes) -> None:
    try:
        decode_message(type(request), decode_request(frame[LENGTH_BYTES:]).body)
    except ProtocolError as error:
        raise InvalidRequestError(f"{error}; nothing was sent") from error


def text_fault(text: str) -> str:
    """Why no daemon would read a string, quoting it; empty when one would."""
    try:
        size = len(text.encode())
    except UnicodeEncodeError:
        return f"{text[:60]!r} is no text that UTF-8 can hold"
    if size > MAX_STRING_BYTES:
        return f"{text[:40]!r}... takes {size} of at most {MAX_STRING_BYTES} bytes of UTF-8"
    return ""


def _breaks_bound(value: Any) -> bool:
    """Looks at plain lists only, which is quick also for ten thousand assignments."""
    for item in value:
        kind = type(item)
        if kind is str:
            if _is_too_long(item):
                return True
        elif (kind is list or kind is tuple) and (len(item) > MAX_ARRAY_ITEMS or _breaks_bound(item)):
            return True
    return False


def _is_too_long(text: str) -> bool:
    return len(text) * _MAX_UTF8_PER_CHAR > MAX_STRING_BYTES and len(text.encode()) > MAX_STRING_BYTES


def _explained(request: Request, client_id: str) -> str:
    if len(client_id) > _MAX_CLIENT_ID_CHARS:
        fault = f"its client_id has {len(client_id)} characters, at most {_MAX_CLIENT_ID_CHARS} are allowed"
    else:
        fault = next(_faults("client_id", client_id), None) or next(_faults("", request))
    return f"{type(request).__name__} cannot be sent: {fault}; nothing was sent"


def _faults(name: str, value: Any) -> Iterator[str]:
    """What is wrong with a value, in words that name its field."""
    if isinstance(value, str):
        fault = text_fault(value)
        if fault:
            yield f"its {name} {fault}"
    elif isinstance(value, tuple | list):
        if len(value) > MAX_ARRAY_ITEMS:
            yield f"its {name} has {len(value)} entries, at most {MAX_ARRAY_ITEMS} are allowed"
        for item in value:
            yield from _faults(name, item)
    elif dataclasses.is_dataclass(value) and not isinstance(value, type):
        for field in dataclasses.fields(value):
            yield from _faults(field.name, getattr(value, field.name))
