"""What is asked of the batches of a Produce before one is taken.

They are whole, within the bounds, and fit for their topic. Every batch of a partition is checked before the first is
appended, so that a refusal leaves the log as it was. A compressed body is inflated for that and thrown away; what it says it
holds is looked at before. A request costs at most what inflating
``MAX_REQUEST_INFLATED_BYTES`` costs, a batch what ``MAX_INFLATED_BYTES`` costs. A core inflates some 200 MB/s of gzip and
1 GB/s of zstd. So a batch of more than ``MAX_ON_LOOP_BYTES`` is checked in a thread, where checksums and inflating leave the
loop alone, and of smaller ones no more than that is checked in one step.

What comes by the Kafka port is checked in another way (``coordinator.kafka.batches``), within the same bounds.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Generator
from functools import partial
from typing import Final

from coordinator.log.config import LogConfig
from coordinator.metadata.catalog import TopicError
from protocol.errors import ErrorCode, ProtocolError
from protocol.kafka.batch import KafkaBatchHeader
from protocol.record_batch import MAX_BATCH_BYTES, Attributes, BatchHeader, decode_columns, read_header

# Plain numbers: an operation on two IntFlags takes a microsecond.
ALLOWED: Final = int(
    Attributes.COMPRESSION_MASK | Attributes.KEYS | Attributes.NULL_KEYS | Attributes.NULL_VALUES | Attributes.HEADERS
)
"""What a producer may say in a batch's attributes; the other bits are the daemon's, or of a version to come."""
_TRANSACTIONAL: Final = int(Attributes.TRANSACTIONAL)
ALLOWED_IN_TRANSACTIONS: Final = ALLOWED | _TRANSACTIONAL
_COMPRESSION: Final = int(Attributes.COMPRESSION_MASK)
_KEY_BITS: Final = int(Attributes.KEYS | Attributes.NULL_KEYS)
_EVERY_KEY: Final = int(Attributes.KEYS)

MAX_INFLATED_BYTES: Final = 16 * 1024 * 1024
"""Bytes a compressed body may hold, or ``max.message.bytes`` of its topic where that is more.

Four times the largest batch that a producer makes by default: it counts its batches before it compresses them.
"""
MAX_REQUEST_INFLATED_BYTES: Final = MAX_BATCH_BYTES
"""Bytes all compressed bodies of a request may hold together: as many as it can carry plain. No producer of ours comes near,
as it bounds its requests before it compresses them."""


MAX_ON_LOOP_BYTES: Final = 512 * 1024
"""Bytes of batches, inflated, that are checked on the loop at once: one to two ms of it."""

InThread = Callable[[Callable[[], None]], "asyncio.Future[None]"]
"""Calls a function in a thread."""

Batches = list[tuple[bytes, BatchHeader]]
Checking = Generator["asyncio.Future[None] | None", None, Batches]
"""Steps of a check; each gives what to wait for before the next, or None to leave a turn of the loop to others."""

Check = Callable[[str, LogConfig, bytes, "Inflation", InThread, int], Checking]
"""Makes batches of the records of a partition; see ``checked_batches``."""


class RefusedRecordsError(TopicError):
    """A batch that is refused; ``records`` are the places in it of those for which it is, where it is single ones."""

    def __init__(self, code: ErrorCode, message: str, records: tuple[int, ...]) -> None:
        super().__init__(code, message)
        self.records = records


class Inflation:
    """What may still be inflated for one request, in bytes, over all its partitions."""

    __slots__ = ("_left",)

    def __init__(self) -> None:
        self._left = MAX_REQUEST_INFLATED_BYTES

    def bound(self, config: LogConfig) -> int:
        """What a compressed batch that does not say what it holds may hold."""
        return min(max(MAX_INFLATED_BYTES, config.max_message_bytes), self._left)

    def take(self, size: int) -> None:
        """Takes into account what was inflated, even if it is of no use: no more than ``bound`` was."""
        self._left -= size

    def admit(self, topic: str, config: LogConfig, header: BatchHeader) -> None:
        """Takes a compressed batch into account. Raises ``TopicError`` when it says it holds more than it may."""
        bound = max(MAX_INFLATED_BYTES, config.max_message_bytes)
        holds = f"topic {topic!r}: a compressed batch of {header.length} bytes holds {header.body_length} bytes"
        if header.body_length > bound:
            raise TopicError(ErrorCode.MESSAGE_TOO_LARGE, f"{holds}, at most {bound} are taken")
        if header.body_length > self._left:
            raise TopicError(
                ErrorCode.MESSAGE_TOO_LARGE,
                f"{holds}; of the {MAX_REQUEST_INFLATED_BYTES} that all batches of a request may hold {self._left} are left",
            )
        self._left -= header.body_length


def checked_batches(
    topic: str,
    config: LogConfig,
    records: bytes,
    inflation: Inflation,
    in_thread: InThread,
    allowed: int = ALLOWED,
) -> Checking:
    """The batches in ``records``, step by step. Raises ``TopicError`` for the first that is refused.

    ``inflation`` is that of the request. A compressed batch is refused with MESSAGE_TOO_LARGE before it is inflated when its
    header says too much; with UNSUPPORTED_COMPRESSION_TYPE when this daemon lacks the library; with CORRUPT_MESSAGE when the
    stream or the columns in it are not what the header says.
    """
    batches: Batches = []
    position = done = 0
    try:
        while position < len(records):
            header = read_header(records, position)
            _check_header(topic, config, header, allowed)
            if header.attributes & _COMPRESSION and header.compression is not None:
                inflation.admit(topic, config, header)
            check = partial(_check_body, topic, config, records, position, header)
            size = max(header.length, header.body_length)
            if size > MAX_ON_LOOP_BYTES:
                checking = in_thread(check)
                yield checking
                checking.result()
            else:
                if done + size > MAX_ON_LOOP_BYTES:
                    done = 0
                    yield None
                done += size
                check()
            end = position + header.length
            batches.append((records if end - position == len(records) else records[position:end], header))
            position = end
    except ProtocolError as error:
        raise TopicError(ErrorCode.CORRUPT_MESSAGE, f"topic {topic!r}: {error}") from error
    except ModuleNotFoundError as error:  # only zstd needs one
        raise TopicError(
            ErrorCode.UNSUPPORTED_COMPRESSION_TYPE,
            f"topic {topic!r}: this daemon cannot inflate zstd: install aiocohort[zstd] for it, or let producers use gzip",
        ) from error
    if not batches:
        raise TopicError(ErrorCode.INVALID_RECORD, f"topic {topic!r}: the request holds no batch")
    return batches


def _check_header(topic: str, config: LogConfig, header: BatchHeader, allowed: int) -> None:
    max_bytes = config.max_message_bytes
    if header.length > max_bytes:
        raise TopicError(
            ErrorCode.MESSAGE_TOO_LARGE,
            f"a batch of {header.length} bytes is above max.message.bytes of topic {topic!r}, {max_bytes}",
        )
    if header.record_count > max_bytes:  # only what is compressed can be so dense: every reader would meet them all
        raise TopicError(
            ErrorCode.MESSAGE_TOO_LARGE,
            f"a batch of {header.record_count} records is above what max.message.bytes of topic {topic!r}, {max_bytes}, "
            "allows: one a byte",
        )
    if header.record_count < 1 or header.last_offset_delta != header.record_count - 1:
        count = f"{header.record_count} record{'' if header.record_count == 1 else 's'}"
        span = f"{count} cannot span {header.last_offset_delta + 1} offsets"
        raise TopicError(ErrorCode.INVALID_RECORD, f"topic {topic!r}: {span}")
    if header.attributes & ~allowed:
        bits = f"attributes {header.attributes:#x} are not a producer's to set"
        if header.attributes & ~allowed == _TRANSACTIONAL:
            bits = "a transactional batch needs the request's transactional id"
        raise TopicError(ErrorCode.INVALID_RECORD, f"topic {topic!r}: {bits}")
    if header.kept_epoch >= 0:
        raise TopicError(ErrorCode.INVALID_RECORD, f"topic {topic!r}: the kept epoch is not a producer's to set")
    if config.compact and header.attributes & _KEY_BITS != _EVERY_KEY:
        which = "some" if header.attributes & _EVERY_KEY else "all"
        have = "the record has" if header.record_count == 1 else f"{which} of the {header.record_count} records have"
        raise TopicError(
            ErrorCode.INVALID_RECORD,
            f"topic {topic!r} is compacted, so every record needs a key; {have} none",
        )
    check_producer(topic, header)


def _check_body(topic: str, config: LogConfig, records: bytes, position: int, header: BatchHeader) -> None:
    """May run in a thread."""
    columns = decode_columns(records, position, header)
    columns.check()
    if config.message_timestamp_type != "CreateTime":
        return
    # Look-ups by time and retention go by the header: it must not say anything else than the records.
    bounds = columns.timestamp_bounds()
    if bounds != (header.base_timestamp, header.max_timestamp):
        raise TopicError(
            ErrorCode.INVALID_RECORD,
            f"topic {topic!r}: the header of a batch says timestamps {header.base_timestamp} to {header.max_timestamp}, its "
            f"records have {bounds[0]} to {bounds[1]}",
        )


def check_producer(topic: str, header: BatchHeader | KafkaBatchHeader) -> None:
    """An idempotent batch has a producer id, an epoch and a sequence; any other has none of them. Raises ``TopicError``."""
    numbers = (header.producer_id, header.producer_epoch, header.base_sequence)
    if header.producer_id == -1 if numbers[1:] == (-1, -1) else min(numbers) >= 0:
        return
    raise TopicError(
        ErrorCode.INVALID_RECORD,
        f"topic {topic!r}: producer id {numbers[0]}, epoch {numbers[1]} and sequence {numbers[2]} do not go together: "
        "all are -1, or none is negative",
    )
