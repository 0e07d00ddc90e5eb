"""Columns of stored batches as Arrow batches for Spark: buffers are wrapped, and no record is touched."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

import pyarrow
import pyarrow.compute

from client.types.columns import BinaryColumn, RecordColumns

CREATE_TIME: Final = 0
LOG_APPEND_TIME: Final = 1

Parts = Sequence[RecordColumns]

_MICROSECONDS: Final = pyarrow.timestamp("us", tz="UTC")
_LAST_MS: Final = (2**63 - 1) // 1000


class ArrowBatches:
    """Makes Arrow batches of one partition's records, with the columns of ``schema`` and no others.

    The parts of one batch are joined: Spark pays for each batch it gets, and small stored batches would cost it dearly.
    """

    def __init__(self, schema: Any, topic: str, partition: int) -> None:
        self._schema = schema
        self._constants: Mapping[str, Any] = {
            "topic": pyarrow.scalar(topic, pyarrow.string()),
            "partition": pyarrow.scalar(partition, pyarrow.int32()),
        }
        self._repeated: dict[str, Any] = {}

    def batch(self, parts: Parts) -> Any:
        """One ``pyarrow.RecordBatch`` of one or more parts. Raises ``pyarrow.ArrowInvalid`` for columns that are damaged."""
        count = sum(map(len, parts))
        columns = [self._column(name, parts, count) for name in self._schema.names]
        return pyarrow.RecordBatch.from_arrays(columns, schema=self._schema)

    def _column(self, name: str, parts: Parts, count: int) -> Any:
        if name in self._constants:
            return self._constant(name, count)
        return _BUILDERS[name](parts)

    def _constant(self, name: str, count: int) -> Any:
        """The same value for every row: made once for the largest batch so far, and sliced."""
        repeated = self._repeated.get(name)
        if repeated is None or len(repeated) < count:
            repeated = self._repeated[name] = pyarrow.repeat(self._constants[name], count)
        return repeated.slice(0, count)


def _keys(parts: Parts) -> Any:
    return _joined([_binary(part.key, len(part)) for part in parts])


def _values(parts: Parts) -> Any:
    return _joined([_binary(part.value, len(part)) for part in parts])


def _offsets(parts: Parts) -> Any:
    arrays = []
    for part in parts:
        offsets = part.offsets
        arrays.append(
            pyarrow.arange(offsets.start, offsets.stop) if isinstance(offsets, range) else _int64(memoryview(offsets))  # type: ignore[arg-type]
        )
    return _joined(arrays)


def _timestamps(parts: Parts) -> Any:
    """Microseconds, as Spark counts. A time that Spark has no number for is null: one wrong clock ends no query."""
    milliseconds = _joined([_int64(part.timestamps_ms) for part in parts])
    try:
        return milliseconds.view(pyarrow.timestamp("ms", tz="UTC")).cast(_MICROSECONDS)
    except pyarrow.ArrowInvalid:
        known = pyarrow.compute.less_equal(milliseconds, _LAST_MS)
        milliseconds = pyarrow.compute.if_else(known, milliseconds, pyarrow.scalar(None, pyarrow.int64()))
        return milliseconds.view(pyarrow.timestamp("ms", tz="UTC")).cast(_MICROSECONDS)


def _timestamp_types(parts: Parts) -> Any:
    kinds = [LOG_APPEND_TIME if part.has_log_append_time else CREATE_TIME for part in parts]
    return _joined(
        [
            pyarrow.repeat(pyarrow.scalar(kind, pyarrow.int32()), len(part))
            for kind, part in zip(kinds, parts, strict=True)
        ]
    )


def _headers(parts: Parts) -> Any:
    """Null for a record without headers, as Spark's Kafka source has it. These are the one column made record by record."""
    header = pyarrow.struct([("key", pyarrow.string()), ("value", pyarrow.binary())])
    rows = [
        [{"key": key, "value": value} for key, value in headers] or None for part in parts for headers in part.headers()
    ]
    return pyarrow.array(rows, pyarrow.list_(header))


_BUILDERS: Final[Mapping[str, Callable[[Parts], Any]]] = {
    "key": _keys,
    "value": _values,
    "offset": _offsets,
    "timestamp": _timestamps,
    "timestampType": _timestamp_types,
    "headers": _headers,
}


def _joined(arrays: list[Any]) -> Any:
    return arrays[0] if len(arrays) == 1 else pyarrow.concat_arrays(arrays)


def _int64(column: memoryview) -> Any:
    return pyarrow.Array.from_buffers(pyarrow.int64(), len(column), [None, pyarrow.py_buffer(column)])


def _binary(column: BinaryColumn | None, count: int) -> Any:
    """Wraps the buffers; the offsets in them came from a producer and are checked, at the speed of C."""
    if column is None:
        return pyarrow.nulls(count, pyarrow.binary())
    buffers = [column.validity, column.offsets, column.data]
    wrapped = [None if buffer is None else pyarrow.py_buffer(buffer) for buffer in buffers]
    binary = pyarrow.Array.from_buffers(pyarrow.binary(), count, wrapped)
    binary.validate(full=True)
    return binary
