"""Batches of Kafka clients on their way into a log.

A batch is checked as a broker has to and becomes the body of one of ours, as it came. What the header of ours says of it was
found in it: the times are those of its records, whatever its own header says, as Kafka corrects it. How batches leave is
described in ``protocol.kafka.conversion``.

Before the first one is appended the metadata say so (``BatchAdmission``): an older daemon would take what it does not know
for damage, or for columns. It refuses to start then, and in a cluster none is taken while a node lives that does not read
them.

Records are walked, each by its length, and must have offsets that follow one another; keys, values and headers are not
parsed, as little as those of our own clients' batches.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Generator
from functools import partial
from typing import Final, TypeVar

from coordinator.log.config import LogConfig
from coordinator.log_output import get_logger
from coordinator.metadata.authority import Compare, Put
from coordinator.metadata.catalog import TopicError
from coordinator.metadata.keys import CLUSTER_FORMAT, KAFKA_BATCHES
from coordinator.metadata.store import MetadataStore, MetadataUnavailableError
from coordinator.server.handlers.produced_batches import (
    ALLOWED,
    MAX_ON_LOOP_BYTES,
    Checking,
    Inflation,
    InThread,
    RefusedRecordsError,
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

log = get_logger()

RECORDS_PER_STEP: Final = 4096
"""Records that are walked in one step: one to two ms."""
_NO_PRODUCER: Final = -1
_LARGEST_BYTES: Final = MAX_BATCH_BYTES - NATIVE_HEADER_BYTES - 8
"""Of a batch that has to fit into one of ours, with padding."""

# Plain numbers: an operation on two IntFlags takes a microsecond.
_TRANSACTIONAL: Final = int(Attributes.TRANSACTIONAL)
_KAFKA_LOG_APPEND_TIME: Final = int(KafkaAttributes.LOG_APPEND_TIME)
_CLIENTS_BITS: Final = int(KafkaAttributes.COMPRESSION_MASK | KafkaAttributes.TRANSACTIONAL)

_Result = TypeVar("_Result")


class BatchAdmission:
    """``admitted``, once logs may hold what it makes."""

    def __init__(self, metadata: MetadataStore) -> None:
        self._metadata = metadata
        self._allowed = False
        self._raising: asyncio.Task[None] | None = None

    def __call__(
        self,
        topic: str,
        config: LogConfig,
        records: bytes,
        inflation: Inflation,
        in_thread: InThread,
        allowed: int = ALLOWED,
    ) -> Checking:
        """See ``admitted``; also LEADER_NOT_AVAILABLE, after which a client tries again, while older nodes live, and
        KAFKA_STORAGE_ERROR when the metadata cannot be written."""
        batches = yield from admitted(topic, config, records, inflation, in_thread, allowed)
        if not self._allowed:
            if (
                self._metadata.get(CLUSTER_FORMAT) is None
            ):  # a node that is alone; the first of a cluster writes it at once
                if self._raising is None or self._raising.done():
                    self._raising = asyncio.create_task(self._raise_format(), name="cohort-kafka-format")
                yield self._raising
            self._check(topic)
        return batches

    def _check(self, topic: str) -> None:
        known = self._metadata.get(CLUSTER_FORMAT)
        if known is None:
            text = "the metadata could not be written, which have to say that logs hold batches of Kafka clients"
            raise TopicError(ErrorCode.KAFKA_STORAGE_ERROR, f"topic {topic!r}: {text}")
        if known.value["format"] < KAFKA_BATCHES:
            text = "nodes of the cluster run a version that does not read batches of Kafka clients: upgrade all of them"
            raise TopicError(ErrorCode.LEADER_NOT_AVAILABLE, f"topic {topic!r}: {text}")
        self._allowed = True

    async def _raise_format(self) -> None:
        compare = [Compare(CLUSTER_FORMAT, "create", 0)]
        try:
            await self._metadata.transaction(compare, [Put(CLUSTER_FORMAT, {"format": KAFKA_BATCHES})])
        except (MetadataUnavailableError, OSError) as error:  # told to those that wait; the next batch tries again
            log.warning("cluster_format_not_raised", format=KAFKA_BATCHES, error=str(error))


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
        raise RefusedRecordsError(error.code, f"topic {topic!r}: {error}", error.records) from error
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
    if (
        header.producer_id != _NO_PRODUCER
    ):  # without one neither epoch nor sequence count, and some clients send a sequence
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
    count, span_ms = header.record_count, header.max_timestamp - header.base_timestamp
    for first in range(0, count, RECORDS_PER_STEP):
        if first:
            yield None
        some = min(RECORDS_PER_STEP, count - first)
        part = check_records(content, position, first, some, config.compact, span_ms)
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
