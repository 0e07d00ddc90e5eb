"""Columns between Arrow and record batches: buffers are wrapped, sliced and their offsets moved, no row is touched.

``ArrowBatches`` makes Arrow batches of stored ones, ``Rows`` stored batches of Arrow columns.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Final, Literal, NamedTuple

import msgpack
import numpy
import pyarrow
import pyarrow.compute

from client.errors import InvalidRecordError
from client.types.columns import BinaryColumn, RecordColumns
from protocol.columns import ColumnFlags
from protocol.record_batch import EncodedBatch, batch_of

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


class Column(NamedTuple):
    """A binary column without nulls: ``offsets`` int32, ``data`` uint8; ``valid`` says which rows are there, None: all."""

    offsets: Any
    data: Any
    valid: Any | None

    @staticmethod
    def of(array: Any) -> Column:
        """The column of an Arrow array of binary or string; the data of rows that are null is left out."""
        valid = None
        if array.type != pyarrow.binary():
            array = array.cast(pyarrow.binary())
        if array.null_count:
            valid = array.is_valid().to_numpy(zero_copy_only=False)
            array = pyarrow.compute.fill_null(array, b"")
        _, offsets, data = array.buffers()
        size = len(array) + 1
        numbers = numpy.frombuffer(offsets, numpy.int32, size, 4 * array.offset) if len(array) else numpy.zeros(1, "i4")
        content = numpy.frombuffer(data, numpy.uint8) if data is not None and data.size else numpy.zeros(0, numpy.uint8)
        return Column(numbers, content, valid)

    def sizes(self) -> Any:
        """The bytes of each row."""
        return numpy.diff(self.offsets)

    def part(self, start: int, stop: int) -> Column:
        """Some of the rows."""
        valid = None if self.valid is None else self.valid[start:stop]
        return Column(self.offsets[start : stop + 1], self.data, valid)

    def pieces(self) -> tuple[list[Any], list[Any], list[Any]]:
        """Offsets, validity and data as they stand in a batch; validity is empty when all rows are there."""
        numbers = self.offsets
        moved = numbers - numbers[0] if numbers[0] else numbers
        bits = self.bits()
        data = self.data[numbers[0] : numbers[-1]]
        return _padded(moved), [] if bits is None else _padded(bits), _padded(data)

    def bits(self) -> Any | None:
        """The validity of the rows as a bitmap, None when all are there."""
        if self.valid is None or self.valid.all():
            return None
        return numpy.packbits(self.valid, bitorder="little")


class Rows(NamedTuple):
    """Rows for one partition, as columns; ``keys`` and ``headers`` are None when no row has any."""

    values: Column
    keys: Column | None
    headers: Column | None

    def portions(self, batch_bytes: int, sizes: Any) -> Iterator[Rows]:
        """The rows, of these ``sizes``, in portions that make batches of about ``batch_bytes``, each of one row at least."""
        ends = numpy.cumsum(sizes)
        start, count, before = 0, len(ends), 0
        while start < count:
            stop = max(start + 1, int(numpy.searchsorted(ends, before + batch_bytes, side="right")))
            yield self if stop - start == count else self.part(start, stop)
            start, before = stop, int(ends[stop - 1])

    def part(self, start: int, stop: int) -> Rows:
        """Some of the rows."""
        return Rows(*(None if column is None else column.part(start, stop) for column in self))  # type: ignore[arg-type]

    def sizes(self) -> Any:
        """The bytes of each row: its columns with their offsets, and its timestamp."""
        columns = [column for column in self if column is not None]
        return sum(column.sizes().astype(numpy.int64) + 8 for column in columns) + 8

    def encode(self, timestamp_ms: int, compression: Literal["gzip", "zstd"] | None) -> EncodedBatch:
        """The rows as one batch, all with one timestamp."""
        count = len(self.values.offsets) - 1
        keys = self.keys
        if keys is not None and keys.valid is not None and not keys.valid.any():
            keys = None
        nothing: tuple[list[Any], list[Any], list[Any]] = ([], [], [])
        key_offsets, key_bits, key_data = keys.pieces() if keys is not None else nothing
        value_offsets, value_bits, value_data = self.values.pieces()
        header_offsets, _, header_data = self.headers.pieces() if self.headers is not None else nothing
        flags = ColumnFlags(
            keys=keys is not None,
            null_keys=bool(key_bits),
            null_values=bool(value_bits),
            headers=self.headers is not None,
        )
        timestamps = [numpy.full(count, timestamp_ms, "<i8").data.cast("B")]
        offsets = [*key_offsets, *value_offsets, *timestamps, *key_bits, *value_bits, *header_offsets]
        body = [*offsets, *key_data, *value_data, *header_data]
        return batch_of(flags, body, count, (timestamp_ms, timestamp_ms), compression=compression)


def headers_column(array: Any) -> Column | None:
    """The headers of rows as a batch has them, from an Arrow list of structs; None when no row has any."""
    rows = array.to_pylist()
    if not any(rows):
        return None
    packed = [msgpack.packb([_header(one) for one in row]) if row else b"" for row in rows]
    return Column.of(pyarrow.array(packed, pyarrow.binary()))


def _header(given: dict[str, Any] | None) -> tuple[str, bytes | None]:
    key, value = (None, None) if given is None else (given["key"], given["value"])
    if key is None:
        raise InvalidRecordError(
            f"a row has a header {'that is null' if given is None else 'without a key'}, which no record can have; leave it "
            f"out: filter(headers, header -> header.key IS NOT NULL)"
        )
    return key, value.encode() if isinstance(value, str) else value


def _padded(column: Any) -> list[Any]:
    content = numpy.ascontiguousarray(column).data.cast("B") if column.size else memoryview(b"")
    left = -len(content) % 8
    return [content, bytes(left)] if left else [content]
