"""Kafka's record batches of format 2 (KIP-98): header, checksum, and giving a batch its place in a log.

All integers are big-endian::

    0   base offset       int64    given by the leader
    8   length            int32    bytes behind this field
    12  leader epoch      int32    given by the leader
    16  magic             int8     2
    17  crc               uint32   crc32c of everything behind this field
    21  attributes        int16    see ``KafkaAttributes``
    23  last offset delta int32
    27  base timestamp    int64    ms; what the records' deltas are added to: the first one's
    35  max timestamp     int64    ms; the largest, or the broker's with LogAppendTime
    43  producer id       int64    -1 without idempotence
    51  producer epoch    int16
    53  base sequence     int32
    57  record count      int32
    61  records           see ``protocol.kafka.records``; compressed together

Offset and epoch lie before the checksum, so a leader gives a batch its place by writing twelve bytes. Everything else is
covered: what changes it needs a new checksum.

What a batch is refused with is a ``KafkaBatchError``, which has the code that Kafka's clients know.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from enum import IntFlag
from typing import Final, NamedTuple

from protocol.errors import ErrorCode, ProtocolError

MAGIC: Final = 2
HEADER_BYTES: Final = 61
CODECS: Final = ("none", "gzip", "snappy", "lz4", "zstd")
"""Kafka's names of compressions, by their number in the attributes."""
INSTALL: Final = "pip install 'aiocohort[kafka]'"

_HEADER: Final = struct.Struct(">qiibIhiqqqhii")
_PLACE: Final = struct.Struct(">qii")
"""Base offset, length, leader epoch."""
_LENGTH: Final = struct.Struct(">i")
_LENGTH_AT: Final = 8
_CRC: Final = struct.Struct(">I")
LENGTH_END: Final = 12
"""The field of the length counts what is behind it."""
_EPOCH_END: Final = 16
_MAGIC_AT: Final = 16
_CRC_AT: Final = 17
_CRC_START: Final = 21
_LEAST_BYTES: Final = 17
"""What all formats have before the byte that tells them apart, and that byte."""


class KafkaAttributes(IntFlag):
    """Bits of the attributes of a batch. The three lowest are an index into ``CODECS``."""

    NONE = 0
    COMPRESSION_MASK = 0b111
    LOG_APPEND_TIME = 1 << 3
    TRANSACTIONAL = 1 << 4
    CONTROL = 1 << 5
    DELETE_HORIZON = 1 << 6


_COMPRESSION_MASK: Final = int(KafkaAttributes.COMPRESSION_MASK)


class KafkaBatchError(ProtocolError):
    """A batch that is refused, or does not decode; ``code`` says to Kafka's clients why.

    ``records`` are the places in the batch of the records for which it is refused, or of some of them, where it is single
    ones (KIP-467).
    """

    def __init__(self, code: ErrorCode, message: str, records: Sequence[int] = ()) -> None:
        super().__init__(message)
        self.code = code
        self.records = tuple(records)


class KafkaLibraryError(ModuleNotFoundError):
    """A library that batches of Kafka clients need is not installed; the text says which, and how to get it."""


def _corrupt(message: str) -> KafkaBatchError:
    return KafkaBatchError(ErrorCode.CORRUPT_MESSAGE, message)


class KafkaBatchHeader(NamedTuple):
    """The header of a batch, decoded; see the module text for units. ``size`` is that of the whole batch in bytes."""

    base_offset: int
    size: int
    leader_epoch: int
    crc: int
    attributes: int
    last_offset_delta: int
    base_timestamp: int
    max_timestamp: int
    producer_id: int
    producer_epoch: int
    base_sequence: int
    record_count: int

    @property
    def codec(self) -> str:
        """The name of the records' compression. Raises ``KafkaBatchError`` for a number that Kafka has not given."""
        number = self.attributes & _COMPRESSION_MASK
        if number >= len(CODECS):
            known = ", ".join(f"{known} {name}" for known, name in enumerate(CODECS))
            raise KafkaBatchError(
                ErrorCode.UNSUPPORTED_COMPRESSION_TYPE, f"compression {number} is unknown; known are {known}"
            )
        return CODECS[number]

    def pack(self) -> bytes:
        """The 61 bytes of this header; the checksum is the one in ``crc``."""
        return _HEADER.pack(
            self.base_offset, self.size - LENGTH_END, self.leader_epoch, MAGIC, self.crc, self.attributes,
            self.last_offset_delta, self.base_timestamp, self.max_timestamp, self.producer_id, self.producer_epoch,
            self.base_sequence, self.record_count,
        )  # fmt: skip

    def with_records(self, records: bytes) -> bytes:
        """A whole batch: this header, with size and checksum made for ``records``, and these.

        Raises ``KafkaLibraryError`` where crc32c is not installed.
        """
        head = self._replace(size=HEADER_BYTES + len(records), crc=0).pack()
        covered = head[_CRC_START:] + records
        return b"".join((head[:_CRC_AT], _CRC.pack(crc32c(covered)), covered))


def crc32c(data: bytes) -> int:
    """The checksum of Kafka's batches (Castagnoli). Raises ``KafkaLibraryError`` where its library is not installed."""
    try:
        from google_crc32c import value
    except ModuleNotFoundError as error:
        raise KafkaLibraryError(
            f"batches of Kafka clients have a checksum that needs google-crc32c: {INSTALL}", name="google_crc32c"
        ) from error
    checksum: int = value(data)
    return checksum


def read_batch_header(data: bytes | memoryview, at: int = 0) -> KafkaBatchHeader:
    """The header of the batch at ``at``, all of which must be there; the checksum is not looked at.

    Raises ``KafkaBatchError``: CORRUPT_MESSAGE when it is cut off or says what cannot be, INVALID_RECORD for negative
    counts, UNSUPPORTED_FOR_MESSAGE_FORMAT for the formats before 2, which Kafka 4 takes no more either (KIP-724).
    """
    left = len(data) - at
    if left < _LEAST_BYTES:
        raise _corrupt(f"a batch of Kafka has {HEADER_BYTES} bytes of header, {left} are left")
    magic = data[_MAGIC_AT + at]
    if magic < MAGIC:
        raise KafkaBatchError(
            ErrorCode.UNSUPPORTED_FOR_MESSAGE_FORMAT,
            f"messages of format {magic} are not taken, only batches of format {MAGIC}, as clients write since Kafka 0.11",
        )
    if magic > MAGIC:
        raise _corrupt(f"a batch of format {magic} is unknown here; {MAGIC} is known")
    if left < HEADER_BYTES:
        raise _corrupt(f"a batch of Kafka has {HEADER_BYTES} bytes of header, {left} are left")
    (
        base_offset, length, leader_epoch, _, crc, attributes, last_delta, base_timestamp, max_timestamp, producer_id,
        producer_epoch, base_sequence, count,
    ) = _HEADER.unpack_from(data, at)  # fmt: skip
    size = length + LENGTH_END
    if not HEADER_BYTES <= size <= left:
        raise _corrupt(f"a batch that says it has {size} bytes cannot be in {left}")
    if count < 0 or last_delta < 0 or last_delta < count - 1:
        raise KafkaBatchError(
            ErrorCode.INVALID_RECORD, f"a batch of {count} records cannot span {last_delta + 1} offsets"
        )
    return KafkaBatchHeader(
        base_offset, size, leader_epoch, crc, attributes, last_delta, base_timestamp, max_timestamp, producer_id,
        producer_epoch, base_sequence, count,
    )  # fmt: skip


def check_crc(batch: bytes, header: KafkaBatchHeader) -> None:
    """Raises ``KafkaBatchError`` (CORRUPT_MESSAGE) unless the checksum of ``batch``, which is whole, is that of its header.

    Raises ``KafkaLibraryError`` where crc32c is not installed.
    """
    computed = crc32c(batch[_CRC_START:])
    if computed != header.crc:
        raise _corrupt(f"the checksum of the batch is {computed:#010x}, its header says {header.crc:#010x}")


def only_batch(data: bytes) -> KafkaBatchHeader:
    """The header of the one batch that ``data`` is, with the checksum right: what a Produce has for a partition.

    Raises ``KafkaBatchError`` as ``read_batch_header`` and ``check_crc`` do, and INVALID_RECORD when it is followed by
    another, as Kafka takes one a partition since Produce 3; ``KafkaLibraryError`` where crc32c is not installed.
    """
    header = read_batch_header(data)
    if header.size != len(data):
        raise KafkaBatchError(
            ErrorCode.INVALID_RECORD,
            f"a request has one batch for a partition; {len(data) - header.size} bytes follow that of {header.size}",
        )
    check_crc(data, header)
    return header


def placed(batch: bytes | memoryview, base_offset: int, leader_epoch: int) -> list[bytes | memoryview]:
    """The pieces of ``batch`` at its place in a log: offset and leader epoch are written, the checksum covers neither."""
    (length,) = _LENGTH.unpack_from(batch, _LENGTH_AT)
    return [_PLACE.pack(base_offset, length, leader_epoch), memoryview(batch)[_EPOCH_END:]]
