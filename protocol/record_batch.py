"""Record batches: the unit that producers send, the log stores and consumers read.

A batch is a fixed header of 80 bytes and a body of columns (``protocol.columns``), padded to a multiple of eight.
All integers are little-endian::

    0   magic            4 bytes  b"CHB1"
    4   header crc       uint32   crc32 of bytes 8 to 80
    8   length           uint32   whole batch in bytes, a multiple of 8
    12  body crc         uint32   crc32 of everything after the header
    16  base offset      int64    given by the leader
    24  leader epoch     int32    given by the leader
    28  attributes       uint16   see ``Attributes``
    30  reserved         uint16
    32  producer id      int64    -1 without idempotence
    40  producer epoch   int16
    42  kept epoch       uint16   one more than the epoch that its producer goes on under, see below; 0 for most
    44  base sequence    int32    -1 without idempotence
    48  base timestamp   int64    smallest record timestamp in ms; the delete horizon if that attribute is set
    56  max timestamp    int64    largest record timestamp in ms
    64  record count     int32
    68  last delta       int32    last offset covered minus base offset; more than count - 1 only after compaction
    72  body length      uint32   bytes of the body once decompressed, padding included: bounds decompression
    76  durable gap      uint32   base offset minus the offset below which everything was on disk; 2**32 - 1 if unknown

Two checksums, so that the leader can assign offsets by rewriting 80 bytes and never passes over the body again, and yet
every byte is covered. The durable gap lets recovery tell a torn tail from damage: a valid batch behind a hole proves
that the hole had been acknowledged if it claims durability beyond it.

The gap is about one disk. Two copies of a batch agree in bytes 8 to 76 and in the body; bytes 4 to 8 and 76 to 80 belong to
the node that stores it.

A batch of a Kafka client is stored as it came, as the body of a batch with the attribute KAFKA_BODY (``batch_around``). The
header repeats what Kafka's says of the records, and counts where both say something: offsets, times and producer. The body
has a compression of its own, so the bits for it are 0, and the body length is that of Kafka's batch, behind which the
padding follows. ``decode_columns`` makes columns of it, for all who look inside.

A Kafka producer from before KIP-890 keeps one epoch from transaction to transaction, and numbers its records on. The header
of its batches has the id and epoch of the transaction, which are used once, and beside them the kept epoch: the one that the
producer knows. Leaders write it, clients may not.
"""

from __future__ import annotations

import hashlib
import struct
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from enum import IntFlag
from functools import cache
from itertools import pairwise
from typing import Final, NamedTuple

from protocol.checksum import crc32
from protocol.columns import ColumnFlags, Columns, Headers, encode_column_pieces, timestamp_bounds
from protocol.compression import Compression, compressed, decompressed
from protocol.errors import ProtocolError
from protocol.kafka.batch import HEADER_BYTES as KAFKA_HEADER_BYTES
from protocol.kafka.batch import KafkaBatchHeader, KafkaLibraryError, read_batch_header
from protocol.kafka.compression import inflated
from protocol.kafka.records import columns_of

MAGIC: Final = b"CHB1"
HEADER_BYTES: Final = 80
MAX_BATCH_BYTES: Final = 64 * 1024 * 1024
"""Upper bound of a batch, stored or decompressed, whatever a topic allows."""
UNKNOWN_GAP: Final = 2**32 - 1
MAX_SEQUENCE: Final = 2**31 - 1
LAST_PRODUCER_EPOCH: Final = 2**15 - 2
"""The last epoch that is followed by another of the same producer id. 32,767 stays free for fencing, as in Kafka."""

_HEADER: Final = struct.Struct("<4sIIIqiHHqhHiqqiiII")
_UINT32: Final = struct.Struct("<I")
_OFFSET_AND_EPOCH: Final = struct.Struct("<qi")
_CRC_AT: Final = 4
_CRC_START: Final = 8
_OFFSET_AT: Final = 16
_GAP_AT: Final = 76


class Attributes(IntFlag):
    """Bits of the batch header's attributes. The two lowest hold the compression: 0 none, 1 gzip, 2 zstd."""

    NONE = 0
    COMPRESSION_MASK = 0b11
    LOG_APPEND_TIME = 1 << 3
    TRANSACTIONAL = 1 << 4
    CONTROL = 1 << 5
    DELETE_HORIZON = 1 << 6
    KEYS = 1 << 8
    NULL_KEYS = 1 << 9
    NULL_VALUES = 1 << 10
    HEADERS = 1 << 11
    OFFSET_DELTAS = 1 << 12
    KAFKA_BODY = 1 << 13


# Plain numbers: an operation on two IntFlags takes a microsecond.
_COMPRESSION_MASK: Final = int(Attributes.COMPRESSION_MASK)
_LOG_APPEND_TIME: Final = int(Attributes.LOG_APPEND_TIME)
_TRANSACTIONAL: Final = int(Attributes.TRANSACTIONAL)
_KEYS: Final = int(Attributes.KEYS)
_NULL_KEYS: Final = int(Attributes.NULL_KEYS)
_NULL_VALUES: Final = int(Attributes.NULL_VALUES)
_HEADERS: Final = int(Attributes.HEADERS)
_OFFSET_DELTAS: Final = int(Attributes.OFFSET_DELTAS)
_KAFKA_BODY: Final = int(Attributes.KAFKA_BODY)
_COLUMN_BITS: Final = _KEYS | _NULL_KEYS | _NULL_VALUES | _HEADERS | _OFFSET_DELTAS


@cache
def _column_flags(bits: int) -> ColumnFlags:
    return ColumnFlags(
        keys=bool(bits & Attributes.KEYS),
        null_keys=bool(bits & Attributes.NULL_KEYS),
        null_values=bool(bits & Attributes.NULL_VALUES),
        headers=bool(bits & Attributes.HEADERS),
        offset_deltas=bool(bits & Attributes.OFFSET_DELTAS),
    )


_COMPRESSIONS: Final[dict[Compression | None, int]] = {None: 0, "gzip": 1, "zstd": 2}
_COMPRESSION_NAMES: Final[dict[int, Compression | None]] = {number: name for name, number in _COMPRESSIONS.items()}


@dataclass(frozen=True, slots=True)
class BatchHeader:
    """The header of a batch, decoded. See the module text for units."""

    length: int
    body_crc: int
    base_offset: int
    leader_epoch: int
    attributes: int
    producer_id: int
    producer_epoch: int
    base_sequence: int
    base_timestamp: int
    max_timestamp: int
    record_count: int
    last_offset_delta: int
    body_length: int
    durable_gap: int
    kept_epoch: int = -1
    """The epoch that a Kafka producer from before KIP-890 knows; -1 of all others."""

    @property
    def last_offset(self) -> int:
        """The last offset this batch covers."""
        return self.base_offset + self.last_offset_delta

    @property
    def next_offset(self) -> int:
        """The offset after this batch."""
        return self.base_offset + self.last_offset_delta + 1

    @property
    def append_time_ms(self) -> int:
        """The daemon's time that the records got when they were appended; -1 when they have their producer's."""
        return self.max_timestamp if self.attributes & _LOG_APPEND_TIME else -1

    def stamped(self, now_ms: int) -> BatchHeader:
        """The header of the same batch with the daemon's time for its records, whatever their producer said."""
        attributes = self.attributes | _LOG_APPEND_TIME
        return replace(self, attributes=attributes, base_timestamp=now_ms, max_timestamp=now_ms)

    @property
    def compression(self) -> Compression | None:
        """The name of the body's compression. Raises ``ProtocolError`` for an unknown number."""
        number = self.attributes & _COMPRESSION_MASK
        if number not in _COMPRESSION_NAMES:
            raise ProtocolError(f"compression {number} is unknown: a newer writer, or damage")
        return _COMPRESSION_NAMES[number]

    @property
    def flags(self) -> ColumnFlags:
        """Which optional columns the body has."""
        return _column_flags(self.attributes & _COLUMN_BITS)

    def pack(self) -> bytes:
        """The 80 bytes of this header, checksum included."""
        return self.pack_of(self.producer_id, self.producer_epoch, self.base_sequence, self.attributes)

    def pack_of(self, producer_id: int, producer_epoch: int, base_sequence: int, attributes: int) -> bytes:
        """``pack`` of the same header but for what a producer calls the batch."""
        packed = bytearray(HEADER_BYTES)
        _HEADER.pack_into(
            packed, 0, MAGIC, 0, self.length, self.body_crc, self.base_offset, self.leader_epoch, attributes, 0,
            producer_id, producer_epoch, self.kept_epoch + 1, base_sequence, self.base_timestamp, self.max_timestamp,
            self.record_count, self.last_offset_delta, self.body_length,
            self.durable_gap if self.durable_gap < UNKNOWN_GAP else UNKNOWN_GAP,
        )  # fmt: skip
        _UINT32.pack_into(packed, _CRC_AT, crc32(memoryview(packed)[_CRC_START:]))
        return bytes(packed)


def read_header(buffer: bytes | memoryview, position: int = 0) -> BatchHeader:
    """The header at ``position``. Raises ``ProtocolError`` when it is cut off, damaged or absurd.

    The body may still be cut off: compare ``position + header.length`` with what there is.
    """
    if len(buffer) - position < HEADER_BYTES:
        raise ProtocolError(f"a batch header has {HEADER_BYTES} bytes, {len(buffer) - position} are left")
    (
        magic, crc, length, body_crc, base_offset, leader_epoch, attributes, _, producer_id, producer_epoch, kept,
        base_sequence, base_timestamp, max_timestamp, count, last_delta, body_length, gap,
    ) = _HEADER.unpack_from(buffer, position)  # fmt: skip
    if magic != MAGIC:
        raise ProtocolError(f"a batch begins with {MAGIC!r}, found {magic!r}")
    if crc != crc32(memoryview(buffer)[position + _CRC_START : position + HEADER_BYTES]):
        raise ProtocolError("the checksum of the batch header does not match: the header is damaged")
    if not HEADER_BYTES <= length <= MAX_BATCH_BYTES or length % 8 or body_length > MAX_BATCH_BYTES:
        raise ProtocolError(f"a batch of {length} bytes with {body_length} bytes of body is outside the bounds")
    if count < 0 or last_delta < 0 or last_delta < count - 1 or base_offset < 0:
        raise ProtocolError(f"a batch of {count} records cannot span {last_delta + 1} offsets from {base_offset}")
    return BatchHeader(
        length, body_crc, base_offset, leader_epoch, attributes, producer_id, producer_epoch, base_sequence,
        base_timestamp, max_timestamp, count, last_delta, body_length, gap, kept - 1,
    )  # fmt: skip


def restamped(head: bytes | memoryview, base_offset: int, leader_epoch: int, durable_gap: int = UNKNOWN_GAP) -> bytes:
    """The 80 bytes of the header of a batch, which ``head`` begins with, at its place in a log. The body stays as it is."""
    packed = bytearray(head[:HEADER_BYTES])
    _OFFSET_AND_EPOCH.pack_into(packed, _OFFSET_AT, base_offset, leader_epoch)
    _UINT32.pack_into(packed, _GAP_AT, durable_gap if durable_gap < UNKNOWN_GAP else UNKNOWN_GAP)
    _UINT32.pack_into(packed, _CRC_AT, crc32(memoryview(packed)[_CRC_START:]))
    return bytes(packed)


def fingerprint(batch: bytes | memoryview) -> bytes:
    """What two copies of a batch on different disks have in common: all but magic, header crc and durable gap."""
    view = memoryview(batch)
    digest = hashlib.blake2b(view[_CRC_START:_GAP_AT], digest_size=16)
    digest.update(view[HEADER_BYTES:])
    return digest.digest()


def check_body(buffer: bytes | memoryview, position: int, header: BatchHeader) -> None:
    """Raises ``ProtocolError`` unless the whole body is there and its checksum matches."""
    end = position + header.length
    if end > len(buffer):
        raise ProtocolError(f"a batch of {header.length} bytes is cut off after {len(buffer) - position}")
    if crc32(memoryview(buffer)[position + HEADER_BYTES : end]) != header.body_crc:
        raise ProtocolError(
            f"the checksum of the batch at offset {header.base_offset} does not match: its body is damaged"
        )


def sequence_after(sequence: int, count: int) -> int:
    """The sequence number ``count`` records later: 0 follows 2^31 - 1."""
    return (sequence + count) % (MAX_SEQUENCE + 1)


class EncodedBatch(NamedTuple):
    """A batch whose bytes are still in pieces, so that the records are not copied before they are sent."""

    header: BatchHeader
    body: list[bytes]

    def pieces(
        self, producer_id: int = -1, producer_epoch: int = -1, base_sequence: int = -1, transactional: bool = False
    ) -> list[bytes]:
        """The bytes of the batch, under the number that an idempotent producer gives it, perhaps in a transaction."""
        attributes = self.header.attributes | _TRANSACTIONAL if transactional else self.header.attributes
        return [self.header.pack_of(producer_id, producer_epoch, base_sequence, attributes), *self.body]


def encode_batch(
    values: Sequence[bytes | None],
    keys: Sequence[bytes | None] | None = None,
    *,
    timestamps_ms: Sequence[int],
    headers: Sequence[Headers] | None = None,
    offsets: Sequence[int] | None = None,
    compression: Compression | None = None,
    producer_id: int = -1,
    producer_epoch: int = -1,
    base_sequence: int = -1,
) -> bytes:
    """A batch of at least one record, in one piece; see ``encode_in_pieces``."""
    encoded = encode_in_pieces(
        values, keys, timestamps_ms=timestamps_ms, headers=headers, offsets=offsets, compression=compression
    )
    return b"".join(encoded.pieces(producer_id, producer_epoch, base_sequence))


def encode_in_pieces(
    values: Sequence[bytes | None],
    keys: Sequence[bytes | None] | None = None,
    *,
    timestamps_ms: Sequence[int],
    headers: Sequence[Headers] | None = None,
    offsets: Sequence[int] | None = None,
    compression: Compression | None = None,
) -> EncodedBatch:
    """A batch of at least one record, with base offset 0 (or ``offsets[0]``: only compaction passes offsets).

    Raises ``ValueError`` for an empty batch, columns of different lengths, an offset that does not rise, or a batch
    above ``MAX_BATCH_BYTES``; ``ModuleNotFoundError`` when zstd is asked for and not installed.
    """
    if not values:
        raise ValueError("a batch needs at least one record")
    base = offsets[0] if offsets else 0
    deltas = [offset - base for offset in offsets] if offsets else None
    if deltas is not None and any(later <= earlier for earlier, later in pairwise(deltas)):
        raise ValueError("offsets within a batch must rise")
    flags, body = encode_column_pieces(values, keys, timestamps_ms, headers, deltas)
    return batch_of(
        flags,
        body,
        len(values),
        timestamp_bounds(timestamps_ms),
        base_offset=base,
        last_delta=deltas[-1] if deltas else len(values) - 1,
        compression=compression,
    )


def batch_of(
    flags: ColumnFlags,
    body: list[bytes],
    count: int,
    timestamps_ms: tuple[int, int],
    *,
    base_offset: int = 0,
    last_delta: int | None = None,
    compression: Compression | None = None,
) -> EncodedBatch:
    """A batch of ``count`` records around columns that are encoded already, each a multiple of eight bytes long.

    ``timestamps_ms`` are the smallest and the largest. Raises as ``encode_in_pieces`` does.
    """
    body_length = sum(map(len, body))
    if compression is not None:
        body = [compressed(b"".join(body), compression)]
    length = HEADER_BYTES + sum(map(len, body))
    if max(length, body_length + HEADER_BYTES) > MAX_BATCH_BYTES:
        raise ValueError(f"a batch of {body_length} bytes is above the bound of {MAX_BATCH_BYTES}")
    header = BatchHeader(
        length=length,
        body_crc=_crc_of(body),
        base_offset=base_offset,
        leader_epoch=-1,
        attributes=body_attributes(flags, compression),
        producer_id=-1,
        producer_epoch=-1,
        base_sequence=-1,
        base_timestamp=timestamps_ms[0],
        max_timestamp=timestamps_ms[1],
        record_count=count,
        last_offset_delta=count - 1 if last_delta is None else last_delta,
        body_length=body_length,
        durable_gap=UNKNOWN_GAP,
    )
    return EncodedBatch(header, body)


def body_attributes(flags: ColumnFlags, compression: Compression | None) -> int:
    """What the attributes say of a body with these columns, compressed so."""
    return (
        _COMPRESSIONS[compression]
        | (_KEYS if flags.keys else 0)
        | (_NULL_KEYS if flags.null_keys else 0)
        | (_NULL_VALUES if flags.null_values else 0)
        | (_HEADERS if flags.headers else 0)
        | (_OFFSET_DELTAS if flags.offset_deltas else 0)
    )


def empty_batch(base_offset: int, last_offset_delta: int, leader_epoch: int = -1) -> tuple[BatchHeader, bytes]:
    """Header and body of a batch without records that covers offsets of which nothing is left."""
    _, pieces = encode_column_pieces([], None, [])
    body = b"".join(pieces)
    header = BatchHeader(
        length=HEADER_BYTES + len(body),
        body_crc=crc32(body),
        base_offset=base_offset,
        leader_epoch=leader_epoch,
        attributes=0,
        producer_id=-1,
        producer_epoch=-1,
        base_sequence=-1,
        base_timestamp=-1,
        max_timestamp=-1,
        record_count=0,
        last_offset_delta=last_offset_delta,
        body_length=len(body),
        durable_gap=UNKNOWN_GAP,
    )
    return header, body


def batch_around(
    kafka_batch: bytes, inner: KafkaBatchHeader, timestamps_ms: tuple[int, int], *, transactional: bool = False
) -> tuple[bytes, BatchHeader]:
    """A batch whose body is ``kafka_batch``, whole and checked, with the header ``inner``; and its own header.

    ``timestamps_ms`` are the smallest and the largest of its records. Raises ``ValueError`` above ``MAX_BATCH_BYTES``.
    """
    body = [kafka_batch, bytes(-len(kafka_batch) % 8)]
    length = HEADER_BYTES + len(kafka_batch) + len(body[1])
    if length > MAX_BATCH_BYTES:
        raise ValueError(f"a batch of {length} bytes is above the bound of {MAX_BATCH_BYTES}")
    of_producer = inner.producer_id >= 0
    header = BatchHeader(
        length=length,
        body_crc=_crc_of(body),
        base_offset=0,
        leader_epoch=-1,
        attributes=_KAFKA_BODY | _TRANSACTIONAL if transactional else _KAFKA_BODY,
        producer_id=inner.producer_id,
        producer_epoch=inner.producer_epoch if of_producer else -1,
        base_sequence=inner.base_sequence if of_producer else -1,
        base_timestamp=timestamps_ms[0],
        max_timestamp=timestamps_ms[1],
        record_count=inner.record_count,
        last_offset_delta=inner.last_offset_delta,
        body_length=len(kafka_batch),
        durable_gap=UNKNOWN_GAP,
    )
    return b"".join((header.pack(), *body)), header


def kafka_batch_in(buffer: bytes | memoryview, position: int, header: BatchHeader) -> bytes:
    """The Kafka batch that is the body of the batch at ``position``, which has the attribute KAFKA_BODY; not checked."""
    start = position + HEADER_BYTES
    return bytes(memoryview(buffer)[start : start + min(header.body_length, header.length - HEADER_BYTES)])


def compression_of_columns(buffer: bytes | memoryview, position: int, header: BatchHeader) -> Compression | None:
    """What the records of a batch are to be compressed with when others are made of it, as columns.

    For what a Kafka client compressed, whatever with, that is gzip, which all readers have. Raises ``ProtocolError``.
    """
    if not header.attributes & _KAFKA_BODY:
        return header.compression
    inner = read_batch_header(kafka_batch_in(buffer, position, header))
    return None if inner.codec == "none" else "gzip"


def _crc_of(pieces: list[bytes]) -> int:
    crc = 0
    for piece in pieces:
        crc = crc32(piece, crc)
    return crc


def decode_columns(buffer: bytes | memoryview, position: int, header: BatchHeader) -> Columns:
    """The columns of the batch at ``position``, decompressed and made of Kafka's records if need be.

    Raises ``ProtocolError`` when the checksum, the compressed stream or the records are not what the header says,
    ``ModuleNotFoundError`` for a compression whose library is not installed; see ``what_to_install``.
    """
    check_body(buffer, position, header)
    if header.attributes & _KAFKA_BODY:
        return _columns_of_kafka(kafka_batch_in(buffer, position, header), header.record_count)
    body = memoryview(buffer)[position + HEADER_BYTES : position + header.length]
    compression = header.compression
    if compression is not None:
        body = memoryview(decompressed(body, compression, header.body_length))
    if len(body) != header.body_length:
        raise ProtocolError(f"the body has {len(body)} bytes, its header says {header.body_length}")
    return Columns(body, header.record_count, header.flags)


def _columns_of_kafka(kafka_batch: bytes, count: int) -> Columns:
    inner = read_batch_header(kafka_batch)
    if inner.record_count != count:
        raise ProtocolError(f"the body has a batch of {inner.record_count} records, its header says {count}")
    records = inflated(inner.codec, kafka_batch[KAFKA_HEADER_BYTES : inner.size], MAX_BATCH_BYTES)
    flags, body = columns_of(records, count, inner.base_timestamp)
    return Columns(memoryview(body), count, flags)


def what_to_install(error: ModuleNotFoundError) -> str:
    """What a program lacks that cannot decode a batch for this reason, and how to get it."""
    if isinstance(error, KafkaLibraryError):
        return str(error)
    return "it is compressed with zstd, which this program cannot inflate: pip install 'aiocohort[zstd]'"


def iter_batches(buffer: bytes | memoryview) -> Iterator[tuple[int, BatchHeader]]:
    """Position and header of each *complete* batch in ``buffer``; a cut-off batch at the end is passed over.

    Bodies are not checked. Raises ``ProtocolError`` for a damaged header.
    """
    position, end = 0, len(buffer)
    while end - position >= HEADER_BYTES:
        header = read_header(buffer, position)
        if position + header.length > end:
            return
        yield position, header
        position += header.length
