"""An idempotent producer without an event loop: what a task writes with.

Requests of ``max.request.size`` bytes at most go out ahead of their answers, ``IN_FLIGHT`` at a time. Batches are numbered
when they are sent first and keep their number through every attempt (KIP-98), so a daemon takes each once. When something
fails, every answer under way is awaited, and what failed is sent again in its order.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import count
from typing import Final

from client.errors import (
    CohortError,
    ConnectionLostError,
    DuplicateSequenceNumberError,
    MessageTooLargeError,
    OutOfOrderSequenceNumberError,
    UnknownProducerIdError,
    UnknownTopicOrPartitionError,
    error_for,
)
from client.producer.produce_request import PARTITION_BYTES, RequestFilling, room_for_batches
from client.producer.sequences import BatchSequence, ProducerIdentity, Sequences
from client.spark.leaders import Leaders
from client.spark.options import SinkOptions
from client.spark.wire import Until, Wire
from protocol.errors import ErrorCode
from protocol.messages import ApiKey
from protocol.messages.producers import InitProducerIdRequest, InitProducerIdResponse
from protocol.messages.records import ProduceResponse
from protocol.produce_frame import encode_produce_request
from protocol.record_batch import HEADER_BYTES, EncodedBatch
from protocol.subscription import TopicPartition

IN_FLIGHT: Final = 4
"""Requests under way; a daemon tells repeated batches among the last five of a partition."""
_ALL: Final = -1


@dataclass(slots=True, eq=False)
class Outgoing:
    """One batch on its way to one partition; ``place`` is which of all batches it is."""

    place: int
    partition: TopicPartition
    batch: EncodedBatch
    number: BatchSequence


@dataclass(slots=True)
class _Sent:
    wire: Wire
    correlation_id: int
    batches: Sequence[Outgoing]


class TaskProducer:
    """The producer of one task attempt: ``delivery_timeout_ms`` of ``options`` bounds how long one batch is tried."""

    def __init__(self, leaders: Leaders, options: SinkOptions) -> None:
        self._leaders = leaders
        self._request_timeout_ms = options.connection.request_timeout_ms
        self._delivery_timeout_ms = options.delivery_timeout_ms
        self._max_request_bytes = options.max_request_bytes
        self._client_id = options.connection.client_id
        self._most_bytes: int | None = None
        self._identity = ProducerIdentity()
        self._numbering: dict[TopicPartition, Sequences] = {}
        self._under_way: deque[_Sent] = deque()
        self._places = count()
        self.acknowledged: dict[TopicPartition, int] = {}
        """Records on disk, by partition."""

    def send(self, batches: Sequence[tuple[TopicPartition, EncodedBatch]]) -> None:
        """Sends batches, one at most for each partition, waiting for earlier ones where too many are under way.

        Raises what keeps an earlier batch or one of these from being stored, when retrying cannot help or
        ``delivery.timeout.ms`` are over.
        """
        if self._identity.producer_id is None:
            self._identify()
        while len(self._under_way) >= IN_FLIGHT:
            self._settle(self._oldest())
        outgoing = [  # numbered now and not before: what was settled may have begun a new epoch
            Outgoing(next(self._places), partition, batch, self._numbers(partition).take(batch.header.record_count))
            for partition, batch in batches
        ]
        failed = self._start(outgoing)
        if failed:
            self._settle(failed)

    def most_bytes(self) -> int:
        """Bytes of batches that a request may carry: as many as ``max.request.size`` and the daemon allow.

        Raises the last error of the connection when no daemon says so within ``delivery.timeout.ms``.
        """
        if self._most_bytes is None:
            until = Until(self._delivery_timeout_ms)
            told = self._leaders.retrying(
                lambda: self._leaders.max_request_bytes(ApiKey.PRODUCE, self._until()),
                until,
                "asking how large a request may be",
            )
            allowed = self._max_request_bytes
            room = room_for_batches(allowed + PARTITION_BYTES, told, self._client_id)
            self._most_bytes = room - PARTITION_BYTES
        return self._most_bytes

    def flush(self) -> None:
        """Waits until everything is on disk; raises as ``send`` does."""
        while self._under_way:
            self._settle(self._oldest())

    def _until(self) -> Until:
        return Until(self._request_timeout_ms)

    def _numbers(self, partition: TopicPartition) -> Sequences:
        numbering = self._numbering.get(partition)
        if numbering is None:
            numbering = self._numbering[partition] = Sequences(self._identity)
        return numbering

    def _identify(self) -> None:
        until = Until(self._delivery_timeout_ms)

        def once() -> InitProducerIdResponse:
            topology = self._leaders.refresh(self._until())
            any_partition = next(
                (
                    TopicPartition(name, index)
                    for name, topic in sorted(topology.topics.items())
                    for index in range(len(topic.partitions))
                ),
                None,
            )
            if any_partition is None:
                raise UnknownTopicOrPartitionError("the topic that rows go to was deleted before the first was written")
            wire = self._leaders.wire_to(any_partition, self._until())
            answer = wire.call(InitProducerIdRequest(), InitProducerIdResponse, self._until())
            if answer.error_code != ErrorCode.NONE:
                raise error_for(answer.error_code, answer.error_message)
            return answer

        answer = self._leaders.retrying(once, until, "getting a producer id")
        self._identity.producer_id = answer.producer_id

    def _start(self, outgoing: Sequence[Outgoing]) -> list[tuple[Outgoing, CohortError]]:
        """Sends as many requests to each leader as the batches need; returns what could not be sent, or failed meanwhile."""
        requests = RequestFilling[Wire, Outgoing](lambda wire: self.most_bytes())
        failed: list[tuple[Outgoing, CohortError]] = []
        for one in outgoing:
            try:
                wire = self._leaders.wire_to(one.partition, self._until())
            except CohortError as error:
                failed.append((one, error))
                continue
            size = bytes_of(one.batch)
            if size > requests.room(wire):
                failed += self._request(wire, requests.take(wire))
            requests.add(wire, one, size)
        for wire, batches in requests.take_all():
            failed += self._request(wire, batches)
        return failed

    def _request(self, wire: Wire, batches: Sequence[Outgoing]) -> list[tuple[Outgoing, CohortError]]:
        """Sends one request once fewer than ``IN_FLIGHT`` are under way; returns what could not be sent, or failed since."""
        failed: list[tuple[Outgoing, CohortError]] = []
        if not batches:
            return failed
        while len(self._under_way) >= IN_FLIGHT:
            failed += self._oldest()
        try:
            correlation_id = wire.send_frame(self._frame(wire, batches), ProduceResponse, self._until())
        except CohortError as error:
            return failed + [(one, error) for one in batches]
        self._under_way.append(_Sent(wire, correlation_id, batches))
        return failed

    def _frame(self, wire: Wire, batches: Sequence[Outgoing]) -> bytes:
        by_topic: dict[str, dict[int, list[bytes]]] = {}
        for one in batches:
            pieces = by_topic.setdefault(one.partition.topic, {}).setdefault(one.partition.partition, [])
            pieces += one.batch.pieces(*one.number)
        topics = [(topic, list(partitions.items())) for topic, partitions in by_topic.items()]
        return encode_produce_request(wire.next_correlation_id, wire.client_id, _ALL, self._request_timeout_ms, topics)

    def _oldest(self) -> list[tuple[Outgoing, CohortError]]:
        """Waits for the oldest answer; returns what failed, and why."""
        sent = self._under_way.popleft()
        try:
            response = sent.wire.receive(sent.correlation_id, ProduceResponse, self._until())
        except CohortError as error:
            sent.wire.close()  # what was sent on it after this may not come before it now
            return [(one, error) for one in sent.batches]
        answers = {
            TopicPartition(topic.name, answer.index): answer
            for topic in response.responses
            for answer in topic.partition_responses
        }
        failed: list[tuple[Outgoing, CohortError]] = []
        for one in sent.batches:
            answer = answers.get(one.partition)
            if answer is None:
                failed.append((one, ConnectionLostError(f"{sent.wire.peer} left a partition out of its answer")))
            elif answer.error_code != ErrorCode.NONE:
                failed.append((one, error_for(answer.error_code, answer.error_message)))
            else:
                self._acknowledge(one)
        return failed

    def _acknowledge(self, one: Outgoing) -> None:
        before = self.acknowledged.get(one.partition, 0)
        self.acknowledged[one.partition] = before + one.batch.header.record_count

    def _settle(self, failed: list[tuple[Outgoing, CohortError]]) -> None:
        """Sends again what failed, in its order, until it is stored."""
        if not failed:
            return
        until = Until(self._delivery_timeout_ms)
        attempt = 0
        while failed:
            while self._under_way:
                failed += self._oldest()
            failed = self._without_duplicates(failed)
            if not failed:
                return
            failed.sort(key=lambda one: one[0].place)  # what could not be sent at all is younger than what was
            worst = next((error for _, error in failed if not self._may_retry(error)), failed[0][1])
            if not self._may_retry(worst):
                raise _explained(worst, failed)
            worst.retriable = True
            self._leaders.pause(worst, attempt, until, "writing records")
            if attempt:
                self._renumber(failed)
            attempt += 1
            self._leaders.look_again(self._until())
            failed = self._again([one for one, _ in failed])

    def _again(self, batches: list[Outgoing]) -> list[tuple[Outgoing, CohortError]]:
        """Sends batches one request after the other: an answer names a partition once, so each has one batch of it."""
        failed: list[tuple[Outgoing, CohortError]] = []
        broken: set[TopicPartition] = set()
        while batches:
            chosen = {one.partition: one for one in reversed(batches)}
            batches = [one for one in batches if chosen[one.partition] is not one]
            rejected = self._start([one for one in chosen.values() if one.partition not in broken])
            while self._under_way:
                rejected += self._oldest()
            behind = [one for one in chosen.values() if one.partition in broken]
            failed += rejected
            failed += [(one, OutOfOrderSequenceNumberError("one before it was not stored")) for one in behind]
            broken |= {one.partition for one, _ in rejected}
        return failed

    def _without_duplicates(self, failed: list[tuple[Outgoing, CohortError]]) -> list[tuple[Outgoing, CohortError]]:
        for one, error in failed:
            if isinstance(error, DuplicateSequenceNumberError):
                self._acknowledge(one)
        return [(one, error) for one, error in failed if not isinstance(error, DuplicateSequenceNumberError)]

    def _may_retry(self, error: CohortError) -> bool:
        if isinstance(error, OutOfOrderSequenceNumberError | UnknownProducerIdError):
            return True
        return error.retriable and not isinstance(error, UnknownTopicOrPartitionError)

    def _renumber(self, failed: list[tuple[Outgoing, CohortError]]) -> None:
        """A daemon that misses a number which nobody will send any more gets a new epoch that begins with 0."""
        first: dict[TopicPartition, CohortError] = {}
        for one, error in failed:
            first.setdefault(one.partition, error)
        for partition, error in first.items():
            if isinstance(error, OutOfOrderSequenceNumberError | UnknownProducerIdError):
                numbering = self._numbering[partition]
                numbering.begin_epoch()
                for one in (one for one, _ in failed if one.partition == partition):
                    one.number = numbering.take(one.batch.header.record_count)


def bytes_of(batch: EncodedBatch) -> int:
    """The bytes of a batch, before or after compression, whichever is more: a daemon bounds both in a request."""
    return HEADER_BYTES + max(batch.header.body_length, batch.header.length - HEADER_BYTES)


def _explained(error: CohortError, failed: Sequence[tuple[Outgoing, CohortError]]) -> CohortError:
    records = sum(one.batch.header.record_count for one, _ in failed)
    error.add_note(
        f"{records:,} record{'' if records == 1 else 's'} of this task {'was' if records == 1 else 'were'} not stored"
    )
    if isinstance(error, MessageTooLargeError):
        error.add_note(
            "batch.size bounds batches; a single row that is larger needs a higher max.message.bytes of its topic"
        )
    return error
