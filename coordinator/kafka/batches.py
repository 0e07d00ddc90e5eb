"""Batches of Kafka clients on their way into a log.

A batch is checked as a broker has to and becomes the body of one of ours, as it came. What the header of ours says of it was
found in it: the times are those of its records, whatever its own header says, as Kafka corrects it. How batches leave is
described in ``protocol.kafka.conversion``.

Records are walked, each by its length, and must have offsets that follow one another; keys, values and headers are not
parsed, as little as those of our own clients' batches.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Generator
from functools import partial
from typing import Final, TypeVar

from coordinator.log.config import LogConfig
from coordinator.metadata.catalog import TopicError
from coordinator.server.handlers.produced_batches import (
    ALLOWED,
    MAX_ON_LOOP_BYTES,
    Checking,
    Inflation,
    InThread,
    check_producer,
)
from protocol.errors import ErrorCode
from protocol.kafka.batch import (
    HEADER_BYTES,
    KafkaAttributes,
    KafkaBatchError,
    KafkaBatchHeader,
    KafkaLibraryError,
    only_batch,
)
from protocol.kafka.compression import inflated
from protocol.kafka.records import check_records
from protocol.kafka.varints import INT64
from protocol.record_batch import HEADER_BYTES as NATIVE_HEADER_BYTES
from protocol.record_batch import MAX_BATCH_BYTES, Attributes, BatchHeader, batch_around

RECORDS_PER_STEP: Final = 4096
"""Records that are walked in one step: one to two ms."""
_LARGEST_BYTES: Final = MAX_BATCH_BYTES - NATIVE_HEADER_BYTES - 8
"""Of a batch that has to fit into one of ours, with padding."""

# Plain numbers: an operation on two IntFlags takes a microsecond.
_TRANSACTIONAL: Final = int(Attributes.TRANSACTIONAL)
_KAFKA_LOG_APPEND_TIME: Final = int(KafkaAttributes.LOG_APPEND_TIME)
_CLIENTS_BITS: Final = int(KafkaAttributes.COMPRESSION_MASK | KafkaAttributes.TRANSACTIONAL)

_Result = TypeVar("_Result")


def admitted(
    topic: str,
    config: LogConfig,
    records: bytes,
    inflation: Inflation,
    in_thread: InThread,
    allowed: int = ALLOWED,
) -> Checking:
    """The one batch that a Kafka client sent for a partition, as one of ours; a ``Check`` of ``ProduceHandler``.

    ``allowed`` says whether it may be transactional. Raises ``TopicError``: CORRUPT_MESSAGE for damage,
    UNSUPPORTED_FOR_MESSAGE_FORMAT for formats before 2, INVALID_RECORD and INVALID_TIMESTAMP for what a client may not say
    or what is not so, MESSAGE_TOO_LARGE above ``max.message.bytes`` and for what holds more than ``inflation`` has left,
    UNSUPPORTED_COMPRESSION_TYPE for an unknown compression or a missing library.
    """
    try:
        if not records:
            raise KafkaBatchError(ErrorCode.INVALID_RECORD, "the request holds no batch")
        large = len(records) > MAX_ON_LOOP_BYTES
        header = yield from _done(partial(only_batch, records), in_thread if large else None)
        if header.producer_id == -1:  # then Kafka does not look at these: aiokafka's sequence is 0
            header = header._replace(producer_epoch=-1, base_sequence=-1)
        _check_header(topic, config, header, allowed)
        content = yield from _inflated(config, records, header, inflation, in_thread)
        times = yield from _times(config, header, content)
        del content
        return [(yield from _done(partial(_around, records, header, times), in_thread if large else None))]
    except KafkaBatchError as error:
        raise TopicError(error.code, f"topic {topic!r}: {error}") from error
    except KafkaLibraryError as error:
        raise TopicError(ErrorCode.UNSUPPORTED_COMPRESSION_TYPE, f"topic {topic!r}: {error}") from error


def _done(
    work: Callable[[], _Result], in_thread: InThread | None
) -> Generator[asyncio.Future[None] | None, None, _Result]:
    """What ``work`` returns, which is done in a thread if there is one for it."""
    if in_thread is None:
        return work()
    results: list[_Result] = []
    working = in_thread(lambda: results.append(work()))
    yield working
    working.result()
    return results[0]


def _check_header(topic: str, config: LogConfig, header: KafkaBatchHeader, allowed: int) -> None:
    max_bytes = min(config.max_message_bytes, _LARGEST_BYTES)
    if header.size > max_bytes:
        raise KafkaBatchError(
            ErrorCode.MESSAGE_TOO_LARGE, f"a batch of {header.size} bytes is above max.message.bytes, {max_bytes}"
        )
    if header.record_count > max_bytes:  # as of ours: every reader would meet them all
        raise KafkaBatchError(
            ErrorCode.MESSAGE_TOO_LARGE,
            f"a batch of {header.record_count} records is above what max.message.bytes, {max_bytes}, allows: one a byte",
        )
    if header.record_count < 1 or header.last_offset_delta != header.record_count - 1:
        span = f"{header.record_count} records cannot span {header.last_offset_delta + 1} offsets"
        raise KafkaBatchError(ErrorCode.INVALID_RECORD, span)
    attributes = header.attributes
    if attributes & _KAFKA_LOG_APPEND_TIME:
        text = "the time of the append is the broker's to set (message.timestamp.type=LogAppendTime)"
        raise KafkaBatchError(ErrorCode.INVALID_TIMESTAMP, text)
    if attributes & ~_CLIENTS_BITS:
        text = f"attributes {attributes & 0xFFFF:#x} are not a client's to set"
        raise KafkaBatchError(ErrorCode.INVALID_RECORD, text)
    if attributes & _TRANSACTIONAL and not allowed & _TRANSACTIONAL:
        text = "a transactional batch needs the request's transactional id"
        raise KafkaBatchError(ErrorCode.INVALID_RECORD, text)
    check_producer(topic, header)


def _inflated(
    config: LogConfig, records: bytes, header: KafkaBatchHeader, inflation: Inflation, in_thread: InThread
) -> Generator[asyncio.Future[None] | None, None, bytes]:
    """The records of a batch, inflated if need be; what that costs counts, whatever comes of it."""
    codec = header.codec
    content = records[HEADER_BYTES:]
    if codec == "none":
        return content
    bound = inflation.bound(config)
    spent = bound
    try:
        try:
            inflating = partial(inflated, codec, content, min(bound, MAX_ON_LOOP_BYTES))
            content = yield from _done(inflating, in_thread if len(records) > MAX_ON_LOOP_BYTES else None)
        except KafkaBatchError as error:
            if error.code != ErrorCode.MESSAGE_TOO_LARGE or bound <= MAX_ON_LOOP_BYTES:
                raise
            content = yield from _done(partial(inflated, codec, content, bound), in_thread)
        spent = len(content)
        return content
    finally:
        inflation.take(spent)


def _times(
    config: LogConfig, header: KafkaBatchHeader, content: bytes
) -> Generator[asyncio.Future[None] | None, None, tuple[int, int]]:
    """The smallest and the largest time of the records, which are walked, in parts."""
    position = least = largest = 0
    count = header.record_count
    for first in range(0, count, RECORDS_PER_STEP):
        if first:
            yield None
        part = check_records(content, position, first, min(RECORDS_PER_STEP, count - first), config.compact)
        position = part.end
        least = part.least_delta if not first else min(least, part.least_delta)
        largest = part.largest_delta if not first else max(largest, part.largest_delta)
    if position != len(content):
        raise KafkaBatchError(
            ErrorCode.INVALID_RECORD, f"{count} records end at byte {position}, their batch has {len(content)}"
        )
    if config.message_timestamp_type != "CreateTime":
        return header.base_timestamp, header.max_timestamp
    times = header.base_timestamp + least, header.base_timestamp + largest
    if times[0] not in INT64 or times[1] not in INT64:
        raise KafkaBatchError(ErrorCode.INVALID_RECORD, f"times from {times[0]} to {times[1]} ms are none")
    return times


def _around(records: bytes, header: KafkaBatchHeader, times: tuple[int, int]) -> tuple[bytes, BatchHeader]:
    return batch_around(records, header, times, transactional=bool(header.attributes & _TRANSACTIONAL))
