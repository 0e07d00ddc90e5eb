"""Arrow columns as the columns of record batches: buffers are sliced and their offsets moved, rows are not touched."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Literal, NamedTuple

import msgpack
import numpy
import pyarrow
import pyarrow.compute

from protocol.columns import ColumnFlags
from protocol.record_batch import HEADER_BYTES, EncodedBatch, batch_of


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

    def portions(self, batch_bytes: int) -> Iterator[Rows]:
        """The rows in portions that make batches of about ``batch_bytes``, each of one row at least."""
        for start, stop in self._cuts(batch_bytes):
            yield self.part(start, stop)

    def part(self, start: int, stop: int) -> Rows:
        """Some of the rows."""
        return Rows(*(None if column is None else column.part(start, stop) for column in self))  # type: ignore[arg-type]

    def largest(self) -> int:
        """The bytes of the largest row in a batch of its own, about and without compression."""
        return int(self._sizes().max(initial=0)) + HEADER_BYTES

    def _sizes(self) -> Any:
        """The bytes of each row: its columns with their offsets, and its timestamp."""
        columns = [column for column in self if column is not None]
        return sum(column.sizes().astype(numpy.int64) + 8 for column in columns) + 8

    def _cuts(self, batch_bytes: int) -> Iterator[tuple[int, int]]:
        ends = numpy.cumsum(self._sizes())
        start, count, before = 0, len(ends), 0
        while start < count:
            stop = max(start + 1, int(numpy.searchsorted(ends, before + batch_bytes, side="right")))
            yield start, stop
            start, before = stop, int(ends[stop - 1])

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


def _header(given: dict[str, Any]) -> tuple[str, bytes | None]:
    key, value = given["key"], given["value"]
    if key is None:
        raise ValueError("a header has no key; keys of headers are strings")
    return key, value.encode() if isinstance(value, str) else value


def _padded(column: Any) -> list[Any]:
    content = numpy.ascontiguousarray(column).data.cast("B") if column.size else memoryview(b"")
    left = -len(content) % 8
    return [content, bytes(left)] if left else [content]
