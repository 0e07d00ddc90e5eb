"""What the daemon asks of batches before it takes one: whole, within the bounds, and fit for their topic.

Every batch of a partition is checked before the first is appended, so that a refusal leaves the log as it was. Compressed
bodies are not inflated here: what a hostile producer hides in one is met by readers and by compaction, which stop at the
size that the header says.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Final

from coordinator.metadata.catalog import TopicError
from coordinator.metadata.topic_config import TopicConfig
from protocol.errors import ErrorCode, ProtocolError
from protocol.record_batch import Attributes, BatchHeader, check_body, decode_columns, read_header

# Plain numbers: an operation on two IntFlags takes a microsecond.
_ALLOWED: Final = int(
    Attributes.COMPRESSION_MASK | Attributes.KEYS | Attributes.NULL_KEYS | Attributes.NULL_VALUES | Attributes.HEADERS
)
"""What a producer may say in a batch's attributes; the other bits are the daemon's, or of a version to come."""
_KEY_BITS: Final = int(Attributes.KEYS | Attributes.NULL_KEYS)
_EVERY_KEY: Final = int(Attributes.KEYS)
_LOG_APPEND_TIME: Final = int(Attributes.LOG_APPEND_TIME)


def checked_batches(topic: str, config: TopicConfig, records: bytes) -> list[tuple[bytes, BatchHeader]]:
    """The batches in ``records``. Raises ``TopicError`` for the first that is refused."""
    batches: list[tuple[bytes, BatchHeader]] = []
    position = 0
    try:
        while position < len(records):
            header = read_header(records, position)
            _check_header(topic, config, header)
            if header.compression is None:
                decode_columns(records, position, header).check()
            else:
                check_body(records, position, header)
            end = position + header.length
            batches.append((records if end - position == len(records) else records[position:end], header))
            position = end
    except ProtocolError as error:
        raise TopicError(ErrorCode.CORRUPT_MESSAGE, f"topic {topic!r}: {error}") from error
    if not batches:
        raise TopicError(ErrorCode.INVALID_RECORD, f"topic {topic!r}: the request holds no batch")
    return batches


def stamped(header: BatchHeader, now_ms: int) -> BatchHeader:
    """The header of a batch whose records have the daemon's time, whatever their producer said."""
    return replace(header, attributes=header.attributes | _LOG_APPEND_TIME, base_timestamp=now_ms, max_timestamp=now_ms)


def _check_header(topic: str, config: TopicConfig, header: BatchHeader) -> None:
    max_bytes = config.max_message_bytes
    if header.length > max_bytes:
        raise TopicError(
            ErrorCode.MESSAGE_TOO_LARGE,
            f"a batch of {header.length} bytes is above max.message.bytes of topic {topic!r}, {max_bytes}",
        )
    if header.record_count > max_bytes:  # only what is compressed can be so dense: it would be inflated at every reader
        raise TopicError(
            ErrorCode.MESSAGE_TOO_LARGE,
            f"a batch of {header.record_count} records is above what max.message.bytes of topic {topic!r}, {max_bytes}, "
            "allows: one a byte",
        )
    if header.record_count < 1 or header.last_offset_delta != header.record_count - 1:
        span = f"{header.record_count} records cannot span {header.last_offset_delta + 1} offsets"
        raise TopicError(ErrorCode.INVALID_RECORD, f"topic {topic!r}: {span}")
    if header.attributes & ~_ALLOWED:
        bits = f"attributes {header.attributes:#x} are not a producer's to set"
        raise TopicError(ErrorCode.INVALID_RECORD, f"topic {topic!r}: {bits}")
    if config.compact and header.attributes & _KEY_BITS != _EVERY_KEY:
        which = "some" if header.attributes & _EVERY_KEY else "all"
        raise TopicError(
            ErrorCode.INVALID_RECORD,
            f"topic {topic!r} is compacted, so every record needs a key; {which} of the {header.record_count} records of a "
            "batch have none",
        )
    _check_producer(topic, header)


def _check_producer(topic: str, header: BatchHeader) -> None:
    """An idempotent batch has a producer id, an epoch and a sequence; any other has none of them."""
    numbers = (header.producer_id, header.producer_epoch, header.base_sequence)
    if header.producer_id == -1 if numbers[1:] == (-1, -1) else min(numbers) >= 0:
        return
    raise TopicError(
        ErrorCode.INVALID_RECORD,
        f"topic {topic!r}: producer id {numbers[0]}, epoch {numbers[1]} and sequence {numbers[2]} do not go together: "
        "all are -1, or none is negative",
    )
