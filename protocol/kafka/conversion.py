"""Batches of a log in the form that a reader takes: Kafka's for its clients, columns for those of ours that know no other.

A batch that a Kafka client wrote gets its offset and epoch, twelve bytes. Where the log knows better than the batch (the
time of the append, the offsets that it covers after compaction), its header is written anew, with a new checksum, after the
old one has been checked. Columns become batches of Kafka, uncompressed. End markers, of which a control batch of ours
has many, become control batches of one each.

Offsets stay what they are. What is read covers every one of them, where nothing is left by a batch without records.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Final

from protocol.checksum import crc32
from protocol.control_batch import decode_control_batch
from protocol.errors import ErrorCode, ProtocolError
from protocol.kafka.batch import (
    CODECS,
    HEADER_BYTES,
    LENGTH_END,
    MAGIC,
    KafkaAttributes,
    KafkaBatchError,
    KafkaBatchHeader,
    check_crc,
    placed,
    read_batch_header,
)
from protocol.kafka.records import end_marker, records_of
from protocol.record_batch import HEADER_BYTES as NATIVE_HEADER_BYTES
from protocol.record_batch import (
    MAX_BATCH_BYTES,
    Attributes,
    BatchHeader,
    body_attributes,
    decode_columns,
    iter_batches,
    what_to_install,
)

Pieces = list[bytes | memoryview]
"""Bytes that follow one another."""

_NO_TIMESTAMP: Final = -1
_EXTENT: Final = struct.Struct("<8xI16xH42xI")
"""Length, attributes and body length of a header of ours."""
_SAID: Final = struct.Struct(">8xi4xb4xhi8xqq")
"""Of a header of Kafka: length, magic, attributes, last offset delta, max timestamp, producer id."""
# Plain numbers: an operation on two IntFlags takes a microsecond.
_CONTROL: Final = int(Attributes.CONTROL)
_KAFKA_BODY: Final = int(Attributes.KAFKA_BODY)
_COMPRESSION_MASK: Final = int(KafkaAttributes.COMPRESSION_MASK)
_ZSTD: Final = CODECS.index("zstd")
_KEPT_IN_COLUMNS: Final = int(
    Attributes.LOG_APPEND_TIME | Attributes.TRANSACTIONAL | Attributes.CONTROL | Attributes.DELETE_HORIZON
)
_OUTER: Final = int(KafkaAttributes.LOG_APPEND_TIME | KafkaAttributes.TRANSACTIONAL)
"""What the header of ours decides of the attributes that a Kafka batch goes out with; the bits are the same in both."""
_END_MARKER: Final = int(KafkaAttributes.CONTROL | KafkaAttributes.TRANSACTIONAL)


def for_kafka(records: bytes, *, max_bytes: int | None = None, zstd: bool = True) -> bytes:
    """What a Kafka client gets for ``records``, whole batches of a log; see ``kafka_batches``.

    What does not fit into ``max_bytes`` is left for the next fetch, but for the first batch; so is what comes before a batch
    that cannot be read. Raises ``KafkaBatchError`` when that is the first.
    """
    return _as_far_as(kafka_batches(records, zstd=zstd), max_bytes)


def in_columns(records: bytes, *, max_bytes: int | None = None) -> bytes:
    """``records``, whole batches of a log, with columns in the place of what Kafka clients wrote.

    It ends as ``for_kafka`` says. Raises ``KafkaBatchError`` for a first batch that cannot be read, as ``kafka_batches``.
    """
    return _as_far_as(_each(records, _columns), max_bytes)


def largest_columns(records: bytes) -> int:
    """Bytes of columns, inflated, of the largest batch of ``records`` that ``kafka_batches`` would make Kafka's records of.

    It is one step there, of some 5 µs a KiB: a large one is better converted in a thread.
    """
    position = largest = 0
    while len(records) - position >= NATIVE_HEADER_BYTES:
        length, attributes, body_length = _EXTENT.unpack_from(records, position)
        if not attributes & _KAFKA_BODY:
            largest = max(largest, body_length)
        position += max(length, NATIVE_HEADER_BYTES)
    return largest


def has_kafka_batches(records: bytes) -> bool:
    """Whether ``in_columns`` would change anything. Raises ``ProtocolError`` for a damaged header."""
    return any(header.attributes & _KAFKA_BODY for _, header in iter_batches(records))


def _as_far_as(batches: Iterator[Pieces], max_bytes: int | None) -> bytes:
    pieces: Pieces = []
    size = 0
    while True:
        try:
            batch = next(batches)
        except StopIteration:
            break
        except KafkaBatchError:
            if not pieces:
                raise
            break
        size += sum(map(len, batch))
        if max_bytes is not None and size > max_bytes and pieces:
            break
        pieces += batch
    return b"".join(pieces)


def kafka_batches(records: bytes, *, zstd: bool = True) -> Iterator[Pieces]:
    """For each batch of ``records`` the pieces of what a Kafka client gets for it, which covers the same offsets.

    A batch of columns takes as long as its records do, one to two µs each, so a caller may leave the loop to others between
    two. ``zstd=False`` is for clients that do not read it (Fetch below 10): such batches go out plain. Raises
    ``KafkaBatchError`` for a batch that cannot be read: CORRUPT_MESSAGE, or UNSUPPORTED_COMPRESSION_TYPE where a library is
    missing.
    """

    def for_a_client(view: memoryview, position: int, header: BatchHeader) -> Pieces:
        if not header.record_count:
            return [_empty(header)]
        if header.attributes & _CONTROL:
            return _end_markers(view, position, header)
        if header.attributes & _KAFKA_BODY:
            return _passed_on(view, position, header, zstd)
        return [_converted(view, position, header)]

    return _each(records, for_a_client)


def _each(records: bytes, convert: Callable[[memoryview, int, BatchHeader], Pieces]) -> Iterator[Pieces]:
    view = memoryview(records)
    try:
        for position, header in iter_batches(records):
            yield convert(view, position, header)
    except ProtocolError as error:
        raise KafkaBatchError(ErrorCode.CORRUPT_MESSAGE, str(error)) from error
    except ModuleNotFoundError as error:
        text = f"the batch at offset {header.base_offset} cannot be read: {what_to_install(error)}"
        raise KafkaBatchError(ErrorCode.UNSUPPORTED_COMPRESSION_TYPE, text) from error


def _outer(header: BatchHeader, base_timestamp: int) -> KafkaBatchHeader:
    """The header of a batch of Kafka, without compression, that says what ours says; size and checksum are to be made."""
    return KafkaBatchHeader(
        header.base_offset, 0, header.leader_epoch, 0, header.attributes & _OUTER, header.last_offset_delta,
        base_timestamp, header.max_timestamp, header.producer_id, header.producer_epoch, header.base_sequence,
        header.record_count,
    )  # fmt: skip


def _empty(header: BatchHeader) -> bytes:
    """A control batch that ends nothing, in the place of what was compacted or aborted: readers go on behind it.

    Its record has the last of the offsets: what librdkafka commits is behind the last record that it was given.
    Batches without records, which Kafka keeps too, librdkafka takes for an answer that was too small: it asks for more bytes
    each time, and in the end reports an error.
    """
    marker = KafkaBatchHeader(
        header.base_offset, 0, header.leader_epoch, 0, _END_MARKER, header.last_offset_delta, _NO_TIMESTAMP,
        _NO_TIMESTAMP, -1, -1, -1, 1,
    )  # fmt: skip
    return marker.with_records(end_marker(True, -1, header.last_offset_delta))


def _converted(view: memoryview, position: int, header: BatchHeader) -> bytes:
    """A batch of Kafka with the records of one of ours."""
    columns = decode_columns(view, position, header)
    columns.check()
    base_timestamp = columns.timestamp_column(0, 1)[0]
    return _outer(header, base_timestamp).with_records(records_of(columns, base_timestamp))


def _passed_on(view: memoryview, position: int, header: BatchHeader, zstd: bool) -> Pieces:
    """The batch that a Kafka client wrote, at its place."""
    start = position + NATIVE_HEADER_BYTES
    batch = view[start : start + header.body_length]
    if _says_the_same(batch, header, zstd):
        return placed(batch, header.base_offset, header.leader_epoch)
    inner = read_batch_header(batch)
    if not zstd and inner.codec == "zstd":
        return [_converted(view, position, header)]
    whole = bytes(batch)
    check_crc(whole, inner)
    outer = _outer(header, inner.base_timestamp)
    attributes = inner.attributes & ~_OUTER | outer.attributes
    return [outer._replace(attributes=attributes).with_records(whole[HEADER_BYTES:])]


def _says_the_same(batch: memoryview, header: BatchHeader, zstd: bool) -> bool:
    """Whether a batch can go out as it is: nearly all do, so only what matters is read."""
    if len(batch) < HEADER_BYTES:
        return False
    length, magic, attributes, last_offset_delta, max_timestamp, producer_id = _SAID.unpack_from(batch)
    return (
        length == len(batch) - LENGTH_END
        and magic == MAGIC
        and last_offset_delta == header.last_offset_delta
        and max_timestamp == header.max_timestamp
        and producer_id == header.producer_id
        and attributes & _OUTER == header.attributes & _OUTER
        and (zstd or attributes & _COMPRESSION_MASK != _ZSTD)
    )


def _end_markers(view: memoryview, position: int, header: BatchHeader) -> Pieces:
    """A control batch for each end in one of ours, which covers one offset; the last also what nothing is left of."""
    ends = decode_control_batch(view, position, header)
    batches: Pieces = []
    for index, end in enumerate(ends):
        rest = header.last_offset_delta - index if index == len(ends) - 1 else 0
        marker = KafkaBatchHeader(
            header.base_offset + index, 0, header.leader_epoch, 0, _END_MARKER, rest, header.max_timestamp,
            header.max_timestamp, end.producer_id, end.producer_epoch, -1, 1,
        )  # fmt: skip
        batches.append(marker.with_records(end_marker(end.committed, end.coordinator_epoch)))
    return batches


def _columns(view: memoryview, position: int, header: BatchHeader) -> Pieces:
    """The same batch with columns for a body; as it is, if it has them."""
    if not header.attributes & _KAFKA_BODY:
        return [view[position : position + header.length]]
    columns = decode_columns(view, position, header)
    body = columns.body
    attributes = body_attributes(columns.flags, None) | header.attributes & _KEPT_IN_COLUMNS
    changed = replace(
        header,
        length=NATIVE_HEADER_BYTES + len(body),
        body_crc=crc32(body),
        attributes=attributes,
        body_length=len(body),
    )
    if changed.length > MAX_BATCH_BYTES:
        raise ProtocolError(
            f"the batch at offset {header.base_offset} has {len(body)} bytes of columns, too many for one"
        )
    return [changed.pack(), body]
