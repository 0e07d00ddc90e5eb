"""The body of a record batch: columns in Arrow's layout.

Order in the body, every column starting at a multiple of eight bytes, all integers little-endian::

    key offsets    int32[n + 1]   absent when every key is null
    value offsets  int32[n + 1]
    timestamps     int64[n]       milliseconds since 1970, UTC
    offset deltas  int32[n]       only in batches that compaction has thinned out
    key validity   bit[n]         only if some but not all keys are null; 1 = present, lowest bit first
    value validity bit[n]         only if some value is null (a tombstone)
    header offsets int32[n + 1]   only if some record has headers
    key bytes
    value bytes
    header bytes                  each record's slice: empty, or a msgpack array of [name, value] pairs

Work per record is done by C primitives (``b"".join``, ``array``, ``itertools.accumulate``, slices), never by a Python
loop body, and a reader that wants columns (Arrow, Spark) wraps the slices without touching a record.
"""

from __future__ import annotations

import struct
import sys
from array import array
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import accumulate
from typing import Final, Literal

import msgpack

from protocol.binary_column import BinaryColumn, bits_from
from protocol.errors import ProtocolError

Header = tuple[str, bytes | None]
"""One record header: name and value."""

Headers = tuple[Header, ...]

_BIG_ENDIAN: Final = sys.byteorder == "big"
_PIECE: Final = 16_384
"""Records that are looked at in one call to C."""
_PADDING: Final = [bytes(-length % 8) for length in range(8)]
"""By length modulo 8: the zeros that make it a multiple of eight."""


def _aligned(length: int) -> int:
    return (length + 7) & ~7


def _column_bytes(values: array[int]) -> bytes:
    if _BIG_ENDIAN:
        values = values[:]
        values.byteswap()
    return values.tobytes()


def _column_array(typecode: str, data: memoryview) -> array[int]:
    values = array(typecode)
    values.frombytes(data)
    if _BIG_ENDIAN:
        values.byteswap()
    return values


def _offsets_of(items: Sequence[bytes]) -> bytes:
    """The column of offsets. An ``array`` of the same numbers takes half as long again."""
    return struct.pack(f"<{len(items) + 1}i", *accumulate(map(len, items), initial=0))


def _validity(items: Sequence[object]) -> bytes:
    bits = "".join("0" if item is None else "1" for item in reversed(items))
    return int(bits, 2).to_bytes((len(items) + 7) // 8, "little")


@dataclass(frozen=True, slots=True)
class ColumnFlags:
    """Which optional columns a body has; kept in the attributes of the batch header."""

    keys: bool = False
    null_keys: bool = False
    null_values: bool = False
    headers: bool = False
    offset_deltas: bool = False


@dataclass(frozen=True, slots=True)
class Layout:
    """Where each fixed-size column of a body of ``count`` records starts, in bytes; -1 when absent."""

    key_offsets: int
    value_offsets: int
    timestamps: int
    offset_deltas: int
    key_validity: int
    value_validity: int
    header_offsets: int
    data: int

    @staticmethod
    @lru_cache(1024)
    def of(count: int, flags: ColumnFlags) -> Layout:
        """The layout of ``count`` records with the columns that ``flags`` names."""
        position = 0

        def place(present: bool, length: int) -> int:
            nonlocal position
            if not present:
                return -1
            start = position
            position = start + _aligned(length)
            return start

        offsets, bits = 4 * (count + 1), (count + 7) // 8
        return Layout(
            key_offsets=place(flags.keys, offsets),
            value_offsets=place(True, offsets),
            timestamps=place(True, 8 * count),
            offset_deltas=place(flags.offset_deltas, 4 * count),
            key_validity=place(flags.null_keys, bits),
            value_validity=place(flags.null_values, bits),
            header_offsets=place(flags.headers, offsets),
            data=position,
        )


def encode_columns(
    values: Sequence[bytes | None],
    keys: Sequence[bytes | None] | None,
    timestamps_ms: Sequence[int],
    headers: Sequence[Headers] | None = None,
    offset_deltas: Sequence[int] | None = None,
) -> tuple[ColumnFlags, bytes]:
    """The body of a batch in one piece, and the flags that say how to read it; see ``encode_column_pieces``."""
    flags, pieces = encode_column_pieces(values, keys, timestamps_ms, headers, offset_deltas)
    return flags, b"".join(pieces)


def encode_column_pieces(
    values: Sequence[bytes | None],
    keys: Sequence[bytes | None] | None,
    timestamps_ms: Sequence[int],
    headers: Sequence[Headers] | None = None,
    offset_deltas: Sequence[int] | None = None,
) -> tuple[ColumnFlags, list[bytes]]:
    """The body of a batch, in pieces that follow one another, and the flags that say how to read it.

    ``values``, ``keys``, ``timestamps_ms``, ``headers`` and ``offset_deltas`` have one entry a record; ``keys=None``
    means that all keys are null. Raises ``ValueError`` when their lengths differ.
    """
    count = len(values)
    for name, column in (
        ("keys", keys),
        ("timestamps", timestamps_ms),
        ("headers", headers),
        ("offsets", offset_deltas),
    ):
        if column is not None and len(column) != count:
            raise ValueError(f"{count} values but {len(column)} {name}: every record needs one of each")
    if keys is not None and not any(key is not None for key in keys):
        keys = None
    flags = ColumnFlags(
        keys=keys is not None,
        null_keys=keys is not None and None in keys,
        null_values=None in values,
        headers=headers is not None and any(headers),
        offset_deltas=offset_deltas is not None,
    )
    present_values = [value or b"" for value in values] if flags.null_values else values
    fixed: list[bytes] = []
    data: list[bytes] = []
    if keys is not None:
        present_keys = [key or b"" for key in keys] if flags.null_keys else keys
        fixed.append(_offsets_of(present_keys))  # type: ignore[arg-type]
        data.append(b"".join(present_keys))  # type: ignore[arg-type]
    fixed.append(_offsets_of(present_values))  # type: ignore[arg-type]
    data.append(b"".join(present_values))  # type: ignore[arg-type]
    fixed.append(_column_bytes(timestamps_ms if isinstance(timestamps_ms, array) else array("q", timestamps_ms)))
    if offset_deltas is not None:
        fixed.append(_column_bytes(array("i", offset_deltas)))
    if flags.null_keys and keys is not None:
        fixed.append(_validity(keys))
    if flags.null_values:
        fixed.append(_validity(values))
    if flags.headers and headers is not None:
        packed = [msgpack.packb(record_headers) if record_headers else b"" for record_headers in headers]
        fixed.append(_offsets_of(packed))
        data.append(b"".join(packed))
    pieces: list[bytes] = []
    for column in fixed + data:
        pieces.append(column)
        if len(column) % 8:
            pieces.append(_PADDING[len(column) % 8])
    return flags, pieces


class Columns:
    """A decoded body. Columns are sliced on demand; nothing is copied until a record is asked for.

    Raises ``ProtocolError`` from the constructor when the columns do not fit into the body.
    """

    __slots__ = ("_body", "_layout", "count", "flags", "header_range", "key_range", "value_range")

    def __init__(self, body: memoryview, count: int, flags: ColumnFlags) -> None:
        self._body = body
        self.count = count
        self.flags = flags
        self._layout = layout = Layout.of(count, flags)
        if layout.data > len(body):
            raise ProtocolError(f"{count} records need {layout.data} bytes of columns, the body has {len(body)}")
        position = layout.data
        ranges: list[tuple[int, int]] = []
        for start in (layout.key_offsets, layout.value_offsets, layout.header_offsets):
            length = (
                0
                if start < 0
                else int.from_bytes(body[start + 4 * count : start + 4 * count + 4], "little", signed=True)
            )
            if length < 0 or position + length > len(body):
                raise ProtocolError(f"a column of {length} bytes at {position} leaves the body of {len(body)} bytes")
            ranges.append((position, position + length))
            position += _aligned(length)
        self.key_range, self.value_range, self.header_range = ranges

    @property
    def body(self) -> memoryview:
        """The bytes that these columns are."""
        return self._body

    def check(self) -> None:
        """Raises ``ProtocolError`` unless every column of offsets begins at 0 and never falls.

        Costs a pass over the offsets at C speed, in pieces of less than a ms between which other threads may run; for
        a reader that takes columns from strangers.
        """
        for start in (self._layout.key_offsets, self._layout.value_offsets, self._layout.header_offsets):
            if start < 0:
                continue
            for first in range(0, max(self.count, 1), _PIECE):
                offsets = self._int32(start + 4 * first, min(_PIECE, self.count - first) + 1).tolist()
                if (first == 0 and offsets[0] != 0) or offsets != sorted(offsets):
                    raise ProtocolError("the offsets of a column must begin at 0 and never fall")

    def timestamp_bounds(self) -> tuple[int, int]:
        """The earliest and the latest timestamp of at least one record, in pieces like ``check``."""
        start = self._layout.timestamps
        bounds: list[int] = []
        for first in range(0, self.count, _PIECE):
            piece = self._body[start + 8 * first : start + 8 * min(first + _PIECE, self.count)]
            bounds += timestamp_bounds(_column_array("q", piece))
        return min(bounds), max(bounds)

    def key_column(self, start: int, stop: int) -> BinaryColumn | None:
        """The keys of the records from ``start`` to ``stop``, uncopied; ``None`` when all keys of the batch are null."""
        if not self.flags.keys:
            return None
        return self._binary(start, stop, self._layout.key_offsets, self.key_range, self._layout.key_validity)

    def value_column(self, start: int, stop: int) -> BinaryColumn:
        """The values of the records from ``start`` to ``stop``, uncopied."""
        return self._binary(start, stop, self._layout.value_offsets, self.value_range, self._layout.value_validity)

    def timestamp_column(self, start: int, stop: int) -> memoryview:
        """The timestamps of the records from ``start`` to ``stop``: int64, milliseconds since 1970, uncopied."""
        first = self._layout.timestamps
        return _native(self._body[first + 8 * start : first + 8 * stop], "q")

    def _binary(self, start: int, stop: int, column: int, data: tuple[int, int], validity: int) -> BinaryColumn:
        return BinaryColumn(
            _native(self._body[column + 4 * start : column + 4 * (stop + 1)], "i"),
            self._body[data[0] : data[1]],
            None if validity < 0 else bits_from(self._body[validity : validity + (self.count + 7) // 8], start, stop),
        )

    def _items(self, column: int, data: tuple[int, int], validity: int) -> list[bytes | None]:
        if self.count == 1 and validity < 0 and not any(self._body[column : column + 4]):
            return [self._body[data[0] : data[1]].tobytes()]  # logs that are written record by record are full of these
        return self._binary(0, self.count, column, data, validity).items()

    def _int32(self, start: int, length: int) -> array[int]:
        return _column_array("i", self._body[start : start + 4 * length])

    def keys(self) -> list[bytes | None]:
        """One key a record, ``None`` where there is none."""
        if not self.flags.keys:
            return [None] * self.count
        return self._items(self._layout.key_offsets, self.key_range, self._layout.key_validity)

    def values(self) -> list[bytes | None]:
        """One value a record, ``None`` for a tombstone."""
        return self._items(self._layout.value_offsets, self.value_range, self._layout.value_validity)

    def timestamps_ms(self) -> array[int]:
        """One timestamp a record, milliseconds since 1970."""
        start = self._layout.timestamps
        return _column_array("q", self._body[start : start + 8 * self.count])

    def offset_deltas(self) -> Sequence[int]:
        """Each record's distance from the base offset: 0, 1, 2, ... unless compaction has removed records."""
        if self._layout.offset_deltas < 0:
            return range(self.count)
        return self._int32(self._layout.offset_deltas, self.count)

    def headers(self, start: int = 0, stop: int | None = None) -> list[Headers]:
        """One tuple of headers a record, from ``start`` to ``stop``. Raises ``ProtocolError`` if some do not parse."""
        stop = self.count if stop is None else stop
        if not self.flags.headers:
            return [()] * (stop - start)
        packed = self._binary(start, stop, self._layout.header_offsets, self.header_range, -1).stored()
        try:
            return list(map(_unpack_headers, packed))
        except (ValueError, TypeError, msgpack.exceptions.UnpackException) as error:
            raise ProtocolError(f"record headers do not parse: {error}") from error


def _native(data: memoryview, typecode: Literal["i", "q"]) -> memoryview:
    return memoryview(_column_array(typecode, data)) if _BIG_ENDIAN else data.cast(typecode)


def _unpack_headers(packed: bytes) -> Headers:
    if not packed:
        return ()
    return tuple((str(name), value) for name, value in msgpack.unpackb(packed, use_list=False))


def timestamp_bounds(timestamps_ms: Sequence[int]) -> tuple[int, int]:
    """The earliest and the latest of at least one. Records that were produced together have one time, quick to see."""
    if isinstance(timestamps_ms, array):
        data = timestamps_ms.tobytes()
        if data == data[: timestamps_ms.itemsize] * len(timestamps_ms):
            return timestamps_ms[0], timestamps_ms[0]
    return min(timestamps_ms), max(timestamps_ms)
