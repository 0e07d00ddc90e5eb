"""Produce (0)."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from itertools import pairwise
from typing import Final, cast

from coordinator.log.errors import LogError
from coordinator.log.partition import PartitionLog
from coordinator.log.producers import SequenceError
from coordinator.log_output import get_logger
from coordinator.metadata.catalog import Catalog, Topic, TopicError
from coordinator.partitions import Partitions
from coordinator.server.connection import Call
from coordinator.server.dispatch import Handler
from protocol.errors import ErrorCode, ProtocolError
from protocol.messages import Request
from protocol.messages.records import (
    PartitionProduceData,
    PartitionProduceResponse,
    ProduceRequest,
    ProduceResponse,
    TopicProduceResponse,
)
from protocol.record_batch import Attributes, BatchHeader, check_body, decode_columns, read_header

log = get_logger()

_ACKS: Final = (-1, 0, 1)
_ALLOWED: Final = (
    Attributes.COMPRESSION_MASK | Attributes.KEYS | Attributes.NULL_KEYS | Attributes.NULL_VALUES | Attributes.HEADERS
)
"""What a producer may say in a batch's attributes; the other bits are the daemon's, or of a version to come."""


class ProduceHandler:
    """Checks batches, appends them, answers when they are on disk."""

    def __init__(
        self, catalog: Catalog, partitions: Partitions, max_message_bytes: int, wall_ms: Callable[[], int]
    ) -> None:
        self._catalog = catalog
        self._partitions = partitions
        self._max_message_bytes = max_message_bytes
        self._wall_ms = wall_ms

    def table(self) -> Mapping[type[Request], Handler]:
        """The handlers of this family."""
        return {ProduceRequest: self.produce}

    def produce(self, call: Call) -> None:
        """Appends each partition's batches at once; partitions fail one by one, not together."""
        request = cast("ProduceRequest", call.request)
        pending = _PendingProduce(call, request)
        for topic in request.topic_data:
            for partition in topic.partition_data:
                slot = pending.slot(topic.name)
                try:
                    self._append(topic.name, partition, request.acks, slot)
                except TopicError as error:
                    slot(PartitionProduceResponse(partition.index, error.code, error_message=str(error)))
        pending.all_appended()

    def _append(
        self, name: str, data: PartitionProduceData, acks: int, slot: Callable[[PartitionProduceResponse], None]
    ) -> None:
        if acks not in _ACKS:
            raise TopicError(ErrorCode.INVALID_REQUIRED_ACKS, f"acks is {acks}; it can be 0, 1 or -1 (all)")
        topic = self._catalog.topic(name)
        opened = self._log_of(topic, data.index)
        batches = _checked_batches(topic, data.records, topic.config.get("max.message.bytes", self._max_message_bytes))
        try:
            spans = [self._append_once(opened, content, header) for content, header in batches]
        except LogError as error:
            raise TopicError(ErrorCode.KAFKA_STORAGE_ERROR, f"{name}-{data.index} takes no records: {error}") from error
        except SequenceError as error:
            raise TopicError(error.code, f"{name}-{data.index}: {error}") from error
        base_offset = spans[0][0]
        scattered = any(base != end for (_, end), (base, _) in pairwise(spans))
        answer = PartitionProduceResponse(
            data.index,
            ErrorCode.NONE,
            base_offset,
            -1,
            opened.start_offset,
            "",
            tuple(base for base, _ in spans) if scattered else (),
        )

        def on_durable(error: Exception | None) -> None:
            if error is None:
                slot(answer)
            else:
                message = f"{name}-{data.index}: the batch was not stored: {error}"
                slot(PartitionProduceResponse(data.index, ErrorCode.KAFKA_STORAGE_ERROR, error_message=message))

        # What was appended before counts as well: a repetition is answered when what it repeats is on disk.
        opened.when_durable(max(end for _, end in spans), on_durable)

    def _append_once(self, opened: PartitionLog, content: bytes, header: BatchHeader) -> tuple[int, int]:
        """Appends a batch unless it is in the log already; gives its base offset and the offset after it.

        Raises ``SequenceError`` when it does not continue what its producer wrote before.
        """
        if header.producer_id >= 0:
            repeated = opened.producers.find(header)
            if repeated is not None:
                return repeated.base_offset, repeated.next_offset
        base_offset = opened.append(content, header, self._wall_ms())
        return base_offset, base_offset + header.last_offset_delta + 1

    def _log_of(self, topic: Topic, index: int) -> PartitionLog:
        if topic.internal:
            raise TopicError(
                ErrorCode.INVALID_TOPIC_EXCEPTION, f"topic {topic.name!r} is internal and takes no records"
            )
        return find_log(self._partitions, topic, index)


def find_log(partitions: Partitions, topic: Topic, index: int) -> PartitionLog:
    """The log of a partition. Raises ``TopicError`` telling why there is none."""
    if not 0 <= index < len(topic.partitions):
        raise TopicError(
            ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
            f"topic {topic.name!r} has partitions 0 to {len(topic.partitions) - 1}, not {index}",
        )
    opened = partitions.get(topic.name, index)
    if opened is None:
        damage = partitions.damage(topic.name, index)
        if damage is not None:
            raise TopicError(ErrorCode.KAFKA_STORAGE_ERROR, damage)
        raise TopicError(ErrorCode.LEADER_NOT_AVAILABLE, f"{topic.name}-{index} is not open at the moment; try again")
    return opened


def _checked_batches(topic: Topic, records: bytes, max_bytes: int) -> list[tuple[bytes, BatchHeader]]:
    """The batches in ``records``, each checked whole before the first is appended. Raises ``TopicError``."""
    batches: list[tuple[bytes, BatchHeader]] = []
    position = 0
    try:
        while position < len(records):
            header = read_header(records, position)
            if header.length > max_bytes:
                raise TopicError(
                    ErrorCode.MESSAGE_TOO_LARGE,
                    f"a batch of {header.length} bytes is above max.message.bytes of topic {topic.name!r}, {max_bytes}",
                )
            if header.compression is None:
                decode_columns(records, position, header).check()
            else:
                check_body(
                    records, position, header
                )  # what is inside is the readers' business: nothing is inflated here
            if header.record_count < 1 or header.last_offset_delta != header.record_count - 1:
                span = f"{header.record_count} records cannot span {header.last_offset_delta + 1} offsets"
                raise TopicError(ErrorCode.INVALID_RECORD, f"topic {topic.name!r}: {span}")
            if header.attributes & ~_ALLOWED:
                bits = f"attributes {header.attributes:#x} are not a producer's to set"
                raise TopicError(ErrorCode.INVALID_RECORD, f"topic {topic.name!r}: {bits}")
            _check_producer(topic, header)
            end = position + header.length
            batches.append((records if end - position == len(records) else records[position:end], header))
            position = end
    except ProtocolError as error:
        raise TopicError(ErrorCode.CORRUPT_MESSAGE, f"topic {topic.name!r}: {error}") from error
    if not batches:
        raise TopicError(ErrorCode.INVALID_RECORD, f"topic {topic.name!r}: the request holds no batch")
    return batches


class _PendingProduce:
    """Collects the results of one request's partitions and answers when the last is known or the time is over."""

    def __init__(self, call: Call, request: ProduceRequest) -> None:
        self._call = call
        self._acks = request.acks
        self._timeout_ms = request.timeout_ms
        self._topics: list[tuple[str, list[PartitionProduceResponse | None]]] = []
        self._indexes = [partition.index for topic in request.topic_data for partition in topic.partition_data]
        self._missing = 0
        self._complete = False
        self._answered = False
        self._forget_bytes = call.keep_bytes()
        self._timer: asyncio.TimerHandle | None = None

    def slot(self, topic: str) -> Callable[[PartitionProduceResponse], None]:
        """A place for the result of the next partition; call it once."""
        if not self._topics or self._topics[-1][0] != topic:
            self._topics.append((topic, []))
        results = self._topics[-1][1]
        place = len(results)
        results.append(None)
        self._missing += 1

        def fill(result: PartitionProduceResponse) -> None:
            if not self._answered:
                results[place] = result
            self._missing -= 1
            if self._complete and not self._missing:
                self._finish()

        return fill

    def all_appended(self) -> None:
        """Every partition has its slot: from here on the answer can leave."""
        self._complete = True
        if not self._missing:
            self._finish()
        elif self._acks != 0:
            loop = asyncio.get_running_loop()
            self._timer = loop.call_later(max(self._timeout_ms, 0) / 1000, self._on_timeout)

    def _finish(self) -> None:
        self._forget_bytes()  # not before: an answer by timeout leaves the batches in the queue of the disk
        if not self._answered:
            self._answer()

    def _on_timeout(self) -> None:
        indexes = iter(self._indexes)
        message = f"not on disk within {self._timeout_ms} ms; the batch may be stored later"
        for _, results in self._topics:
            for place, result in enumerate(results):
                index = next(indexes)
                if result is None:
                    code = ErrorCode.REQUEST_TIMED_OUT
                    results[place] = PartitionProduceResponse(index, code, error_message=message)
        self._answer()

    def _answer(self) -> None:
        self._answered = True
        if self._timer is not None:
            self._timer.cancel()
        responses = tuple(
            TopicProduceResponse(topic, tuple(result for result in results if result is not None))
            for topic, results in self._topics
        )
        failed = [entry for topic in responses for entry in topic.partition_responses if entry.error_code]
        if self._acks == 0:
            self._call.finish_silently()
            if failed:
                # There is no answer that could carry the error: as in Kafka, the connection says it by closing.
                log.warning(
                    "produce with acks 0 failed", peer=self._call.connection.peer, error=failed[0].error_message
                )
                self._call.connection.close()
        else:
            self._call.answer(ProduceResponse(responses))


def _check_producer(topic: Topic, header: BatchHeader) -> None:
    """An idempotent batch has a producer id, an epoch and a sequence; any other has none of them."""
    numbers = (header.producer_id, header.producer_epoch, header.base_sequence)
    if header.producer_id == -1 if numbers[1:] == (-1, -1) else min(numbers) >= 0:
        return
    raise TopicError(
        ErrorCode.INVALID_RECORD,
        f"topic {topic.name!r}: producer id {numbers[0]}, epoch {numbers[1]} and sequence {numbers[2]} do not go together: "
        "all are -1, or none is negative",
    )
