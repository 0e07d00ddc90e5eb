"""Produce (0).

``acks`` is what an answer promises. 0: there is no answer; the connection closes when something was refused, as it has no
other way to say so. 1: the batches are on the leader's disk. -1 (all): they are below the high watermark, on the disk of
every replica that is in sync, and those are at least ``min.insync.replicas``. With one replica, its disk is the high
watermark. Whatever ``acks`` says, with ``flush="os"`` "disk" means the operating system's memory.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from itertools import pairwise
from typing import Final, NamedTuple, Protocol, cast

from coordinator.log.errors import LogError
from coordinator.log.partition import PartitionLog
from coordinator.log.producers import Producers, SequenceError, append_time_ms, check_follows
from coordinator.log_output import get_logger
from coordinator.logs.log_manager import LogManager
from coordinator.metadata.catalog import Catalog, Topic, TopicError
from coordinator.server.connection import Call
from coordinator.server.dispatch import STEP, ErrorTexts, Handler, Steps
from coordinator.server.handlers.batch_checks import Inflation, checked_batches, stamped
from protocol.errors import ErrorCode
from protocol.messages import Request
from protocol.messages.records import (
    PartitionProduceData,
    PartitionProduceResponse,
    ProduceRequest,
    ProduceResponse,
    TopicProduceResponse,
)
from protocol.record_batch import BatchHeader

log = get_logger()

_ALL: Final = -1
_ACKS: Final = (_ALL, 0, 1)
_BYTES_PER_WEIGHT: Final = 16 * 1024
"""Bytes of records that count as much as one partition more: they are checked, copied and appended."""


class ProduceHandler:
    """Checks batches, appends them, answers when they are on disk."""

    def __init__(self, catalog: Catalog, partitions: LogManager, wall_ms: Callable[[], int]) -> None:
        self._catalog = catalog
        self._partitions = partitions
        self._wall_ms = wall_ms

    def table(self) -> Mapping[type[Request], Handler]:
        """The handlers of this family."""
        return {ProduceRequest: self.produce}

    def produce(self, call: Call) -> Steps:
        """Appends each partition's batches, many in several steps; partitions fail one by one, not together."""
        request = cast("ProduceRequest", call.request)
        pending = _PendingProduce(call, request)
        inflation, texts = Inflation(), ErrorTexts()
        done = 0
        for topic in request.topic_data:
            for partition in topic.partition_data:
                if done >= STEP:
                    done = 0
                    yield None
                done += 1 + len(partition.records) // _BYTES_PER_WEIGHT
                slot = pending.slot(topic.name)
                try:
                    yield from self._append(topic.name, partition, request.acks, inflation, slot)
                except TopicError as error:
                    slot(PartitionProduceResponse(partition.index, error.code, error_message=texts(str(error))))
                except BaseException:
                    pending.give_up()
                    raise
        pending.all_appended()

    def _append(
        self,
        name: str,
        data: PartitionProduceData,
        acks: int,
        inflation: Inflation,
        slot: Callable[[PartitionProduceResponse], None],
    ) -> Steps:
        if acks not in _ACKS:
            raise TopicError(ErrorCode.INVALID_REQUIRED_ACKS, f"acks is {acks}; it can be 0, 1 or -1 (all)")
        topic, opened = self._writable(name, data.index, acks)
        batches = yield from checked_batches(name, self._catalog.config(topic), data.records, inflation, _in_thread)
        if (
            self._catalog.topics.get(name) is not topic
        ):  # it was changed or deleted while something was checked in a thread
            topic, opened = self._writable(name, data.index, acks)
        self._append_checked(topic, opened, batches, data.index, acks, slot)

    def _writable(self, name: str, index: int, acks: int) -> tuple[Topic, PartitionLog]:
        """The topic and the log of a partition. Raises ``TopicError`` when it takes no records now."""
        topic = self._catalog.topic(name)
        opened = self._log_of(topic, index)
        if acks == _ALL and topic.partitions[index].lacks_replicas(self._catalog.config(topic).min_insync_replicas):
            raise TopicError(ErrorCode.NOT_ENOUGH_REPLICAS, self._too_few(topic, index))
        return topic, opened

    def _append_checked(
        self,
        topic: Topic,
        opened: PartitionLog,
        batches: list[tuple[bytes, BatchHeader]],
        index: int,
        acks: int,
        slot: Callable[[PartitionProduceResponse], None],
    ) -> None:
        name = topic.name
        now_ms = self._wall_ms()
        if self._catalog.config(topic).message_timestamp_type == "LogAppendTime":
            batches = [(content, stamped(header, now_ms)) for content, header in batches]
        try:
            spans = append_once_each(opened, batches, now_ms)
        except LogError as error:
            raise TopicError(ErrorCode.KAFKA_STORAGE_ERROR, f"{name}-{index} takes no records: {error}") from error
        except SequenceError as error:
            raise TopicError(error.code, f"{name}-{index}: {error}") from error
        if batches[0][1].producer_id >= 0 and batches[0][1].base_sequence == 0:
            self._partitions.producer_limit.begun()
        scattered = any(later.base_offset != span.next_offset for span, later in pairwise(spans))
        answer = PartitionProduceResponse(
            index,
            ErrorCode.NONE,
            spans[0].base_offset,
            spans[0].append_time_ms,  # of a repetition it is when it was appended first
            opened.start_offset,
            "",
            tuple(span.base_offset for span in spans) if scattered else (),
        )

        def on_durable(error: Exception | None) -> None:
            if error is None:
                slot(answer if acks != _ALL else self._if_replicated(topic, answer))
            else:
                message = f"{name}-{index}: the batch was not stored: {error}"
                slot(PartitionProduceResponse(index, ErrorCode.KAFKA_STORAGE_ERROR, error_message=message))

        # What was appended before counts as well: a repetition is answered when what it repeats is on disk.
        opened.when_durable(max(span.next_offset for span in spans), on_durable)

    def _if_replicated(self, topic: Topic, answer: PartitionProduceResponse) -> PartitionProduceResponse:
        """The answer; or, when replicas were lost meanwhile, that the records are in the log but not safe."""
        now = self._catalog.topics.get(topic.name)
        if now is None or now.topic_id != topic.topic_id:
            return answer
        if not now.partitions[answer.index].lacks_replicas(self._catalog.config(now).min_insync_replicas):
            return answer
        message = f"{self._too_few(now, answer.index)}. The records are in the log"
        return PartitionProduceResponse(answer.index, ErrorCode.NOT_ENOUGH_REPLICAS_AFTER_APPEND, error_message=message)

    def _too_few(self, topic: Topic, index: int) -> str:
        state = topic.partitions[index]
        return (
            f"{topic.name}-{index} has {len(state.isr)} of {len(state.replicas)} replicas in sync; acks=all needs "
            f"{self._catalog.config(topic).min_insync_replicas} (min.insync.replicas)"
        )

    def _log_of(self, topic: Topic, index: int) -> PartitionLog:
        if topic.internal:
            raise TopicError(
                ErrorCode.INVALID_TOPIC_EXCEPTION, f"topic {topic.name!r} is internal and takes no records"
            )
        return find_log(self._partitions, topic, index)


def _in_thread(check: Callable[[], None]) -> asyncio.Future[None]:
    return asyncio.get_running_loop().run_in_executor(None, check)


class Span(NamedTuple):
    """Where in the log a batch is, and the daemon's time that its records got there (-1: they have their producer's)."""

    base_offset: int
    next_offset: int
    append_time_ms: int


class Appendable(Protocol):
    """What a log has to have to take the batches of idempotent producers once."""

    producers: Producers

    def append(self, batch: bytes, header: BatchHeader, now_ms: int, /) -> int:
        """See ``PartitionLog.append``."""


def append_once_each(opened: Appendable, batches: Sequence[tuple[bytes, BatchHeader]], now_ms: int) -> list[Span]:
    """Appends those batches that are not in the log already; tells where each is.

    All of them or none: batches of one producer continue one another. Raises ``SequenceError`` when they do not, or do not
    continue what their producer wrote before.
    """
    for (_, header), (_, following) in pairwise(batches):
        check_follows(header, following)
    return [_append_once(opened, content, header, now_ms) for content, header in batches]


def _append_once(opened: Appendable, content: bytes, header: BatchHeader, now_ms: int) -> Span:
    """Appends a batch unless it is in the log already; tells where it is.

    Raises ``SequenceError`` when it does not continue what its producer wrote before.
    """
    if header.producer_id >= 0:
        repeated = opened.producers.find(header)
        if repeated is not None:
            return Span(repeated.base_offset, repeated.next_offset, repeated.append_time_ms)
    base_offset = opened.append(content, header, now_ms)
    return Span(base_offset, base_offset + header.last_offset_delta + 1, append_time_ms(header))


def find_log(partitions: LogManager, topic: Topic, index: int) -> PartitionLog:
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

    def give_up(self) -> None:
        """The request failed in the middle and is answered as a whole; its bytes are given back when the last is written."""
        self._answered = self._complete = True
        self._missing -= 1  # that of the partition that failed
        if not self._missing:
            self._finish()

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
