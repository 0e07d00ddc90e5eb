"""Turns what users pass as keys, values, headers and timestamps into what a batch holds, or says what is wrong with it."""

from __future__ import annotations

from array import array
from collections.abc import Iterable, Sequence
from itertools import repeat
from typing import Any

from client.producer.batch import RECORD_OVERHEAD_BYTES
from client.types.serdes import BoundSerializer
from protocol.columns import Headers

_HEADER_OVERHEAD_BYTES = 16
_MAX_TIMESTAMP_MS = 2**63 - 1


def to_bytes(name: str, value: object) -> bytes | None:
    """A bytes-like object as bytes. Raises ``TypeError`` naming the argument and what to pass instead."""
    if value is None or isinstance(value, bytes):
        return value
    if isinstance(value, bytearray | memoryview):
        return bytes(value)
    hint = "encode it first, or give the producer "
    hint += f"{name}_serializer=str.encode" if isinstance(value, str) else f"a {name}_serializer that makes bytes of it"
    raise TypeError(f"{name} must be bytes or None, not {type(value).__name__} {_shown(value)}: {hint}")


def listed(name: str, items: Iterable[Any]) -> list[Any]:
    """Many keys or values as a list. Raises ``TypeError`` for a single one."""
    if isinstance(items, str | bytes | bytearray | memoryview):
        raise TypeError(f"{name}s must be a sequence of {name}s, not a single {type(items).__name__}")
    return list(items)


def bytes_column(
    name: str, column: list[Any], serializer: BoundSerializer | None, topic: str, headers: Sequence[Headers] | None
) -> list[bytes | None]:
    """Many keys or values as ``to_bytes`` makes them, serialized first if there is a serializer.

    ``headers`` are those of each record; None where none has any.
    """
    if serializer is not None:
        each = zip(column, repeat(()) if headers is None else headers, strict=False)
        column = [None if item is None else serializer(item, topic, its_headers) for item, its_headers in each]
    if set(map(type, column)) <= {bytes, type(None)}:
        return column
    return [to_bytes(name, item) for item in column]


def record_sizes(keys: Sequence[bytes | None] | None, values: Sequence[bytes | None]) -> list[int]:
    """What each record takes in a batch, in bytes."""
    if keys is None:
        try:
            return [len(value) + RECORD_OVERHEAD_BYTES for value in values]  # type: ignore[arg-type]
        except TypeError:  # a tombstone among them; looking for it first would cost as much again
            return [RECORD_OVERHEAD_BYTES + (0 if value is None else len(value)) for value in values]
    return [
        (0 if value is None else len(value)) + (0 if key is None else len(key)) + RECORD_OVERHEAD_BYTES
        for key, value in zip(keys, values, strict=True)
    ]


def checked_headers(headers: object) -> tuple[Headers, int]:
    """Headers as a batch holds them, and what they take in bytes.

    Raises ``TypeError`` or ``ValueError`` unless they are pairs of a string and bytes or None.
    """
    problem = f"headers must be a sequence of (str, bytes or None) pairs, not {_shown(headers)}"
    if not isinstance(headers, Sequence) or isinstance(headers, str | bytes):
        raise TypeError(problem)
    checked: list[tuple[str, bytes | None]] = []
    size = _HEADER_OVERHEAD_BYTES
    for header in headers:
        if not isinstance(header, tuple | list) or len(header) != 2:
            raise TypeError(problem)
        name, value = header
        if not isinstance(name, str):
            raise TypeError(f"the name of a header must be a string, not {_shown(name)}")
        if not isinstance(value, bytes | bytearray | memoryview | None):
            raise TypeError(f"the value of header {name!r} must be bytes or None, not {_shown(value)}")
        try:
            size += len(name.encode()) + (0 if value is None else len(value)) + _HEADER_OVERHEAD_BYTES
        except UnicodeEncodeError as error:
            raise ValueError(f"the name of a header must be valid Unicode, not {name!r}") from error
        checked.append((name, None if value is None else bytes(value)))
    return tuple(checked), size


def headers_column(headers: Iterable[Any], count: int) -> tuple[list[Headers], list[int]]:
    """The headers of ``count`` records, one entry each (None: without), and what they take in bytes."""
    if isinstance(headers, str | bytes | bytearray | memoryview):
        raise TypeError("headers must hold one sequence of (str, bytes or None) pairs, or None, for each value")
    checked = [((), 0) if not item else checked_headers(item) for item in headers]
    if len(checked) != count:
        raise ValueError(f"values: {count}, headers: {len(checked)}; every record needs one of each")
    return [item for item, _ in checked], [size for _, size in checked]


def timestamps_column(timestamp_ms: object, count: int) -> int | Sequence[int]:
    """The timestamps of ``count`` records: one for all, or one for each."""
    if isinstance(timestamp_ms, int):
        return checked_timestamp(timestamp_ms)
    if not isinstance(timestamp_ms, Iterable) or isinstance(timestamp_ms, str | bytes | bytearray):
        raise TypeError(
            f"timestamp_ms must be whole milliseconds since 1970, one for all or one for each value, not "
            f"{_shown(timestamp_ms)}"
        )
    times = array("q", map(checked_timestamp, timestamp_ms))
    if len(times) != count:
        raise ValueError(f"values: {count}, timestamps: {len(times)}; every record needs one of each")
    return times


def checked_timestamp(timestamp_ms: object) -> int:
    """A timestamp in ms since 1970. Raises ``TypeError`` or ``ValueError`` for anything else."""
    if not isinstance(timestamp_ms, int) or isinstance(timestamp_ms, bool):
        raise TypeError(f"timestamp_ms must be whole milliseconds since 1970 or None, not {_shown(timestamp_ms)}")
    if not 0 <= timestamp_ms <= _MAX_TIMESTAMP_MS:
        raise ValueError(f"timestamp_ms {timestamp_ms} is outside 0 to 2**63 - 1")
    return timestamp_ms


def _shown(value: object) -> str:
    text = repr(value)
    return text if len(text) <= 60 else f"{text[:57]}..."
