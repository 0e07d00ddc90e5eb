"""The records of a Kafka batch of format 2: checked, made columns of, and made of columns.

A record is, with integers as varints (``protocol.kafka.varints``) but for the attributes::

    length            bytes behind this field
    attributes        one byte, unused
    timestamp delta   ms behind the base timestamp of the batch; may be negative
    offset delta      from the base offset of the batch
    key length        -1 for null
    key
    value length      -1 for null, a tombstone
    value
    header count
    headers           length and UTF-8 of the name, length (-1 for null) and bytes of the value

What is checked of a batch that comes in is what the broker has to rely on (``check_records``): that its records are there,
with offsets that follow one another, and their times. What is inside of one is for those to parse who read it.

Where the program has loaded numpy, the fields of many records are read at once; the lengths, each of which says where the
next record is, are walked in Python. Without it all is done in Python, at half the speed. numpy is never loaded for this
alone, which takes a tenth of a second: a daemon that expects Kafka batches does so when it starts.
"""

from __future__ import annotations

import struct
import sys
from array import array
from collections.abc import Sequence
from functools import cache
from typing import Any, Final, NamedTuple

from protocol.columns import ColumnFlags, Columns, Header, Headers, encode_columns
from protocol.errors import ErrorCode, ProtocolError
from protocol.kafka.batch import KafkaBatchError
from protocol.kafka.varints import (
    INT32,
    INT64,
    VARINT_BYTES,
    VARLONG_BYTES,
    packed_varint,
    packed_varints,
    short_varint,
    varint,
)

_FEWEST_AT_ONCE: Final = 256
"""Of fewer records, one after the other is quicker."""
_HEAD_BYTES: Final = 4
"""Attributes, a timestamp of one byte, and an offset of one or two."""
_OF_ONE_BYTE: Final = 64
_OF_TWO_BYTES: Final = 8192
"""Numbers from 0 to here take so many bytes at most."""
_VARINTS_OF_TWO_BYTES: Final = 0x3FFF
"""The largest; a third byte would make it larger."""
_NOT_NEGATIVE: Final = bytes(range(0, 0x80, 2))
"""The varints of one byte of numbers that are not negative."""
_NULL: Final = 1
"""The varint of -1."""
_LEAST_RECORD_BYTES: Final = 7
"""Of a record without key, value and headers: each field takes a byte."""
_LEAST_CONTENT_BYTES: Final = 6
"""The same behind its length."""
_RECORDS_TOLD: Final = 100
"""Of the records of a batch that lack a key, so many are named."""


def _invalid(message: str) -> KafkaBatchError:
    return KafkaBatchError(ErrorCode.INVALID_RECORD, message)


def _leaves(index: int, position: int, size: int) -> KafkaBatchError:
    return _invalid(f"record {index}, at byte {position}, leaves the {size} bytes of its batch, or its fields leave it")


def _too_few_bytes(count: int, left: int) -> KafkaBatchError:
    return _invalid(f"{count} records do not fit into {left} bytes")


def _out_of_order(expected: int, found: int) -> KafkaBatchError:
    text = f"record {expected} of the batch has the offset delta {found}: they count from 0"
    return KafkaBatchError(ErrorCode.INVALID_RECORD, text, [expected])


def _without_key(indexes: Sequence[int]) -> KafkaBatchError:
    more = f", and {len(indexes) - 1} more" if len(indexes) > 1 else ""
    text = f"record {indexes[0]} of the batch has no key{more}"
    return KafkaBatchError(ErrorCode.INVALID_RECORD, text, indexes[:_RECORDS_TOLD])


def _loaded_numpy() -> Any:
    if "numpy" not in sys.modules:
        return None
    import numpy  # waits if another thread is just loading it

    return numpy


class Checked(NamedTuple):
    """Records that are there: the position behind the last, and the smallest and largest timestamp delta."""

    end: int
    least_delta: int
    largest_delta: int


def check_records(
    records: bytes, position: int, first: int, count: int, keyed: bool = False, span_ms: int | None = None
) -> Checked:
    """Walks ``count`` records, at least one, from ``position`` on, the first of which has the offset delta ``first``.

    That a batch ends behind its last record is for the caller to see; it may check a large one in parts. ``span_ms`` is what
    lies between its earliest and its latest record, if that is known: for a short one there is a quicker way. Raises
    ``KafkaBatchError`` (INVALID_RECORD) when a record leaves the bytes there are, its offset does not follow the one before,
    or, if ``keyed``, some have no key: these are named.
    """
    if not keyed and span_ms is not None and 0 <= span_ms < _OF_ONE_BYTE and first + count <= _OF_TWO_BYTES:
        checked = check_even(records, position, first, count) or check_heads(records, position, first, count)
        if checked is not None:
            return checked
    numpy = _loaded_numpy() if count >= _FEWEST_AT_ONCE else None
    if numpy is None:
        return check_each(records, position, first, count, keyed)
    return check_together(numpy, records, position, first, count, keyed)


def check_even(records: bytes, position: int, first: int, count: int) -> Checked | None:
    """As ``check_heads``, for records of one size; None when others are found.

    Such records are a table, whose columns are compared at once: those with offsets of one byte, then those of two.
    """
    low, high = _offset_bytes()
    times = b""
    index, behind = first, first + count
    while index < behind:
        two = index >= _OF_ONE_BYTE
        some = min(behind, _OF_TWO_BYTES if two else _OF_ONE_BYTE) - index
        try:
            length, behind_length = varint(records, position)
        except IndexError:
            return None
        fields_at = behind_length - position
        width = fields_at + length
        table = records[position : position + width * some]
        if (
            length < _LEAST_CONTENT_BYTES
            or len(table) < width * some
            or any(table[at::width] != table[at : at + 1] * some for at in range(fields_at))
            or table[fields_at + 2 :: width] != low[index : index + some]
            or (two and table[fields_at + 3 :: width] != high[index : index + some])
        ):
            return None
        times += table[fields_at + 1 :: width]
        index, position = index + some, position + len(table)
    if times.translate(None, _NOT_NEGATIVE):
        return None
    return Checked(position, min(times) >> 1, max(times) >> 1)


def check_heads(records: bytes, position: int, first: int, count: int) -> Checked | None:
    """As ``check_records``, for times that take a byte and offsets that take one or two; None when others are found.

    What all records begin with is compared at once with what is expected.
    """
    starts, ends = walk(records, position, count)
    heads = b"".join([records[start : start + _HEAD_BYTES] for start in starts])
    times = heads[1::_HEAD_BYTES]
    of_one_byte = min(max(_OF_ONE_BYTE - first, 0), count)
    low, high = _offset_bytes()
    if (
        times.translate(None, _NOT_NEGATIVE)
        or heads[2::_HEAD_BYTES] != low[first : first + count]
        or heads[3::_HEAD_BYTES][of_one_byte:] != high[first + of_one_byte : first + count]
    ):
        return None
    return Checked(ends[-1], min(times) >> 1, max(times) >> 1)


@cache
def _offset_bytes() -> tuple[bytes, bytes]:
    """The first and the second byte of each offset delta's varint; zero for a second that there is not."""
    packed = [packed_varint(delta).ljust(2, b"\0") for delta in range(_OF_TWO_BYTES)]
    return bytes(number[0] for number in packed), bytes(number[1] for number in packed)


def check_each(records: bytes, position: int, first: int, count: int, keyed: bool) -> Checked:
    """As ``check_records``, a record at a time."""
    least: int | None = None
    largest, size = 0, len(records)
    keyless: list[int] = []
    try:
        for expected in range(first, first + count):
            length, place = records[position], position + 1
            if length > 0x7F and records[place] < 0x80:
                length, place = (length & 0x7F) | records[place] << 7, place + 1
            elif length > 0x7F:
                length, place = varint(records, position)
                length += length
            end = place + (length >> 1)
            if length & 1 or not place < end <= size:
                raise _leaves(expected, position, size)
            delta, place = records[place + 1], place + 2
            if delta > 0x7F or delta & 1:
                delta, place = varint(records, place - 1, VARLONG_BYTES)
            else:
                delta >>= 1
            offset_at, offset, place = place, records[place], place + 1
            if offset > 0x7F and records[place] < 0x80:
                offset, place = (offset & 0x7F) | records[place] << 7, place + 1
            if offset != expected + expected:  # longer than two bytes, or another
                offset, place = varint(records, offset_at)
                offset += offset
            if place >= end:
                raise _leaves(expected, position, size)
            if offset != expected + expected:
                raise _out_of_order(expected, offset >> 1)
            if keyed and records[place] & 1 and varint(records, place)[0] < 0:
                keyless.append(expected)
            if least is None:
                least = largest = delta
            elif delta > largest:
                largest = delta
            elif delta < least:
                least = delta
            position = end
    except IndexError as error:
        raise _too_few_bytes(count, size - position) from error
    if keyless:
        raise _without_key(keyless)
    return Checked(position, least or 0, largest)


def check_together(numpy: Any, records: bytes, position: int, first: int, count: int, keyed: bool) -> Checked:
    """As ``check_records``, a field of all records at a time."""
    starts, ends = walk(records, position, count)
    fields = _Fields(numpy, records, starts, ends)
    deltas = fields.numbers(VARLONG_BYTES)
    offsets = fields.numbers(VARINT_BYTES)
    fields.need_more()
    wrong = numpy.flatnonzero(offsets != numpy.arange(first, first + count))
    if len(wrong):
        raise _out_of_order(first + int(wrong[0]), int(offsets[wrong[0]]))
    if keyed:
        missing = numpy.flatnonzero(fields.numbers(VARINT_BYTES) < 0)
        if len(missing):
            raise _without_key([first + int(index) for index in missing])
    return Checked(ends[-1], int(deltas.min()), int(deltas.max()))


def walk(records: bytes, position: int, count: int) -> tuple[list[int], list[int]]:
    """Where the content of each record begins, behind its length, and where it ends.

    Raises ``KafkaBatchError`` (INVALID_RECORD) for one that leaves the bytes there are, or is too short for its fields.
    """
    first_at = position
    starts: list[int] = []
    ends: list[int] = []
    start_at, end_at, size = starts.append, ends.append, len(records)
    try:
        for index in range(count):
            length = records[position]
            if length < 0x80:
                start = position + 1
            elif (more := records[position + 1]) < 0x80:
                length, start = length + (more << 7) - 0x80, position + 2
            else:
                length, start = varint(records, position)
                length += length
            if length & 1 or length < _LEAST_CONTENT_BYTES << 1:
                raise _leaves(index, position, size)
            position = start + (length >> 1)
            start_at(start)
            end_at(position)
    except IndexError as error:
        if position <= size:
            raise _too_few_bytes(count, size - position) from error
    if position > size:
        before = ends[-2] if len(ends) > 1 else first_at
        raise _leaves(len(ends) - 1, before, size)
    return starts, ends


@cache
def _of_one_byte(numpy: Any) -> Any:
    """The number that each byte below 0x80 is."""
    return numpy.array([(byte >> 1) ^ -(byte & 1) for byte in range(0x80)], numpy.int64)


class _Fields:
    """The fields of many records, read side by side, each call the next one of all of them; as arrays of int64."""

    def __init__(self, numpy: Any, records: bytes, starts: list[int], ends: list[int]) -> None:
        self._numpy = numpy
        self._data = numpy.frombuffer(records, numpy.uint8)
        self._ends = numpy.array(ends)
        self._position = numpy.array(starts) + 1  # behind the attributes

    @property
    def positions(self) -> list[int]:
        """Where the next field of each record is."""
        positions: list[int] = self._position.tolist()
        return positions

    def need_more(self) -> None:
        """Raises ``KafkaBatchError`` unless every record has a byte left."""
        if (self._position >= self._ends).any():
            raise _invalid("the fields of a record leave it")

    def numbers(self, most: int) -> Any:
        """A varint of ``most`` bytes at most of each record. Raises ``KafkaBatchError`` for one that leaves its record."""
        numpy, data = self._numpy, self._data
        self.need_more()
        byte = data[self._position]
        self._position = self._position + 1
        more, read = byte > 0x7F, 1
        if not more.any():
            return _of_one_byte(numpy)[byte]
        number = (byte & 0x7F).astype(numpy.uint64)
        while more.any():
            if read == most:
                raise _invalid("a varint of a record is too large")
            if (self._position[more] >= self._ends[more]).any():
                raise _invalid("the fields of a record leave it")
            byte = numpy.where(more, data[numpy.minimum(self._position, len(data) - 1)], 0)
            if read == VARLONG_BYTES - 1 and (byte > 1).any():
                raise _invalid("a varint of a record is too large")
            number |= (byte & 0x7F).astype(numpy.uint64) << numpy.uint64(7 * read)
            self._position = self._position + more
            more, read = byte > 0x7F, read + 1
        halves, signs = number >> numpy.uint64(1), number & numpy.uint64(1)
        numbers = halves.astype(numpy.int64) ^ -signs.astype(numpy.int64)
        if most == VARINT_BYTES and ((numbers > INT32[-1]) | (numbers < INT32[0])).any():
            raise _invalid("a varint of a record is too large")
        return numbers

    def column(self, records: bytes) -> list[bytes | None] | None:
        """Length and bytes of each record; None when none of them has any."""
        lengths = self.numbers(VARINT_BYTES)
        starts = self._position
        self._position = ends = starts + self._numpy.maximum(lengths, 0)
        if (ends > self._ends).any() or (lengths < -1).any():
            raise _invalid("a key or a value leaves its record")
        pairs = zip(starts.tolist(), ends.tolist(), strict=True)
        if (lengths >= 0).all():
            return [records[start:end] for start, end in pairs]
        if (lengths < 0).all():
            return None
        present = (lengths >= 0).tolist()
        return [records[start:end] if here else None for here, (start, end) in zip(present, pairs, strict=True)]

    def are_bare(self) -> list[bool] | None:
        """Of each record whether it has no headers, and ends there; None when that is so of all."""
        self.need_more()
        bare = (self._position + 1 == self._ends) & (self._data[self._position] == 0)
        found: list[bool] = bare.tolist()
        return None if bare.all() else found


class Records(NamedTuple):
    """The records of a batch, field by field. The deltas are as they were written."""

    timestamp_deltas: Sequence[int]
    offset_deltas: Sequence[int]
    keys: Sequence[bytes | None] | None
    """None when no record has one."""
    values: Sequence[bytes | None]
    headers: Sequence[Headers] | None
    """None when no record has any."""


def read_records(records: bytes, count: int) -> Records:
    """All ``count`` records of a batch, which fill ``records``, inflated.

    Raises ``KafkaBatchError`` (INVALID_RECORD) when they do not, or a field leaves its record. The name of a header that is
    no UTF-8 is read as Java's client does, with U+FFFD for what is none.
    """
    if count * _LEAST_RECORD_BYTES > len(records):
        raise _too_few_bytes(count, len(records))
    starts, ends = walk(records, 0, count)
    end = ends[-1] if ends else 0
    if end != len(records):
        raise _invalid(f"{count} records end at byte {end}, their batch has {len(records)}")
    numpy = _loaded_numpy() if count >= _FEWEST_AT_ONCE else None
    if numpy is None:
        return read_each(records, starts, ends)
    return read_together(numpy, records, starts, ends)


def read_each(records: bytes, starts: list[int], ends: list[int]) -> Records:
    """As ``read_records``, a record at a time; the first begins at ``starts[0]``, behind its length."""
    deltas: list[int] = []
    zigzag_offsets: list[int] = []
    keys: list[bytes | None] = []
    values: list[bytes | None] = []
    headers: list[Headers] = []
    try:
        for start, end in zip(starts, ends, strict=True):
            delta, place = records[start + 1], start + 2
            if delta > 0x7F or delta & 1:
                delta, place = varint(records, start + 1, VARLONG_BYTES)
            else:
                delta >>= 1
            offset, place = records[place], place + 1
            if offset > 0x7F and records[place] < 0x80:
                offset, place = (offset & 0x7F) | records[place] << 7, place + 1
            elif offset > 0x7F:
                offset, place = varint(records, place - 1)
                offset = (offset << 1) ^ (offset >> 31)
            deltas.append(delta)
            zigzag_offsets.append(offset)
            if records[place] == _NULL:
                keys.append(None)
                place += 1
            else:
                key, place = _bytes_at(records, place, end)
                keys.append(key)
            length, value_at = records[place], place + 1
            if length > 0x7F:
                length, value_at = (length & 0x7F) | records[value_at] << 7, value_at + 1
            value_end = value_at + (length >> 1)
            if length & 1 or length > _VARINTS_OF_TWO_BYTES or value_end > end:
                value, place = _bytes_at(records, place, end)
                values.append(value)
            else:
                values.append(records[value_at:value_end])
                place = value_end
            bare = place + 1 == end and not records[place]
            headers.append(() if bare else _headers(records, place, end))
    except IndexError as error:
        raise _invalid("the fields of the last record leave it") from error
    offsets: Sequence[int] = range(len(starts))
    if zigzag_offsets != list(range(0, 2 * len(starts), 2)):
        offsets = [(number >> 1) ^ -(number & 1) for number in zigzag_offsets]
    return Records(
        deltas,
        offsets,
        keys if keys.count(None) < len(keys) else None,
        values,
        headers if any(headers) else None,
    )


def read_together(numpy: Any, records: bytes, starts: list[int], ends: list[int]) -> Records:
    """As ``read_each``, a field of all records at a time."""
    fields = _Fields(numpy, records, starts, ends)
    deltas = fields.numbers(VARLONG_BYTES)
    offsets = fields.numbers(VARINT_BYTES)
    keys = fields.column(records)
    values = fields.column(records)
    bare = fields.are_bare()
    headers: list[Headers] | None = None
    if bare is not None:
        headers = [
            () if empty else _headers(records, place, end)
            for empty, place, end in zip(bare, fields.positions, ends, strict=True)
        ]
        headers = headers if any(headers) else None
    dense = (offsets == numpy.arange(len(starts))).all()
    return Records(
        array("q", deltas.tobytes()),
        range(len(starts)) if dense else offsets.tolist(),
        keys,
        [None] * len(starts) if values is None else values,
        headers,
    )


def _bytes_at(records: bytes, place: int, end: int) -> tuple[bytes | None, int]:
    """The key or value at ``place`` of the record that ends at ``end``, and the position behind it."""
    length, place = short_varint(records, place)
    if length < 0:
        if length != -1:
            raise _invalid(f"a length of {length} in the record that ends at byte {end}")
        return None, place
    if place + length > end:
        raise _invalid(f"{length} bytes at byte {place} leave the record that ends at {end}")
    return records[place : place + length], place + length


def _headers(records: bytes, place: int, end: int) -> Headers:
    """The headers of the record that ends at ``end``, from the field of their count on."""
    found: list[Header] = []
    try:
        count, place = varint(records, place)
        if not 0 <= count <= end - place:
            raise _invalid(f"{count} headers in the record that ends at byte {end}")
        for _ in range(count):
            name, place = _bytes_at(records, place, end)
            if name is None:
                raise _invalid(f"the record that ends at byte {end} has a header without a name")
            value, place = _bytes_at(records, place, end)
            found.append((name.decode("utf-8", "replace"), value))
    except IndexError as error:
        raise _invalid("the headers of the last record leave it") from error
    if place != end:
        raise _invalid(f"the record that ends at byte {end} has fields up to byte {place}")
    return tuple(found)


def columns_of(records: bytes, count: int, base_timestamp: int) -> tuple[ColumnFlags, bytes]:
    """The records of a batch as the body of one of ours, whose offset deltas are those of the batch.

    Raises ``KafkaBatchError`` (INVALID_RECORD) as ``read_records``, and for a time that is no int64 or offsets that do not
    rise.
    """
    read = read_records(records, count)
    deltas: Sequence[int] | None = read.offset_deltas
    if deltas == range(count) or deltas == list(range(count)):
        deltas = None
    elif any(later <= earlier for earlier, later in zip(read.offset_deltas, read.offset_deltas[1:], strict=False)):
        raise _invalid("the offsets of the records do not rise")
    try:
        timestamps = array("q", [base_timestamp + delta for delta in read.timestamp_deltas])
    except OverflowError as error:
        raise _invalid(f"a time of {base_timestamp} ms and more is none") from error
    return encode_columns(read.values, read.keys, timestamps, read.headers, deltas)


def records_of(columns: Columns, base_timestamp: int) -> bytes:
    """The records of columns as Kafka writes them, uncompressed.

    Raises ``ProtocolError`` for headers that are not names and bytes, and times too far from ``base_timestamp``.
    """
    timestamps: Sequence[int] = columns.timestamps_ms()
    deltas = [timestamp - base_timestamp for timestamp in timestamps]
    if deltas and (min(deltas) not in INT64 or max(deltas) not in INT64):
        raise ProtocolError("the times of a batch are too far apart for one of Kafka's")
    values = columns.values()
    lengths = _lengths(values)
    tails = [b"\0"] * columns.count
    if columns.flags.headers:
        tails = [_packed_headers(headers) if headers else b"\0" for headers in columns.headers()]
    numbers = packed_varints(deltas), packed_varints(columns.offset_deltas()), packed_varints(lengths)
    if columns.flags.keys:
        keys = columns.keys()
        key_lengths = packed_varints(_lengths(keys))
        present = [key or b"" for key in keys]
        heads = list(map(b"\0%b%b%b%b%b".__mod__, zip(*numbers[:2], key_lengths, present, numbers[2], strict=True)))
    else:
        heads = list(map(b"\0%b%b\x01%b".__mod__, zip(*numbers, strict=True)))
    pieces: list[bytes] = [b""] * (4 * columns.count)
    pieces[1::4] = heads
    pieces[2::4] = [value or b"" for value in values] if columns.flags.null_values else values  # type: ignore[assignment]
    pieces[3::4] = tails
    sizes = map(sum, zip(map(len, heads), map(len, pieces[2::4]), map(len, tails), strict=True))
    pieces[0::4] = packed_varints(sizes)
    return b"".join(pieces)


def end_marker(committed: bool, coordinator_epoch: int, offset_delta: int = 0) -> bytes:
    """The one record of a control batch that ends a transaction (KIP-98), ``offset_delta`` behind where the batch begins.

    Its key is version and type, 0 abort or 1 commit; its value is version and the epoch of the coordinator.
    """
    key, value = struct.pack(">hh", 0, committed), struct.pack(">hi", 0, coordinator_epoch)
    numbers = b"\0\0" + packed_varint(offset_delta)
    fields = numbers, packed_varint(len(key)), key, packed_varint(len(value)), value, b"\0"
    content = b"".join(fields)
    return packed_varint(len(content)) + content


def _lengths(items: Sequence[bytes | None]) -> list[int]:
    return [-1 if item is None else len(item) for item in items]


def _packed_headers(headers: Headers) -> bytes:
    pieces = [packed_varint(len(headers))]
    for name, value in headers:
        encoded = name.encode("utf-8", "replace")
        if not isinstance(value, bytes | None):
            raise ProtocolError(f"the value of header {name!r} is a {type(value).__name__}, not bytes")
        pieces += (
            packed_varint(len(encoded)),
            encoded,
            packed_varint(-1 if value is None else len(value)),
            value or b"",
        )
    return b"".join(pieces)
