"""Requests with more entries than a daemon takes at once: cut into several, whose answers are put together again.

A daemon bounds the elements of a request (``protocol.limits``), so that no client keeps it from others. What a program asks
for has no such bound: it commits ten thousand partitions in one call. Each piece is served by itself; those of a change may
succeed and fail apart from each other, as their entries do.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Sequence
from typing import Any, Final, TypeVar

from protocol.codec import encode_message
from protocol.limits import max_request_elements
from protocol.messages import ApiKey, Request, Response

ResponseT = TypeVar("ResponseT", bound=Response)

_FEW: Final = 100
"""So few entries fit in a request of any kind, whatever they hold."""

_OTHER_ELEMENTS: Final = 32
"""Elements of a request beside its entries: the frame and the other fields."""

_ENTRIES: Final = {
    ApiKey.METADATA: ("topics", "topics"),
    ApiKey.LIST_OFFSETS: ("topics", "topics"),
    ApiKey.OFFSET_COMMIT: ("topics", "topics"),
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
}
"""Where a request has its entries, and where the answer has what became of each."""

_INNER: Final = {
    ApiKey.LIST_OFFSETS: "partitions",
    ApiKey.OFFSET_COMMIT: "partitions",
    ApiKey.OFFSET_FETCH: "partition_indexes",
    ApiKey.OFFSET_DELETE: "partition_indexes",
    ApiKey.DELETE_RECORDS: "partitions",
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
