"""Records that are queued all at once, in one turn of the loop: the outputs of one record that a consumer handles.

``prepare`` does what may take time or fail: it looks topics up, serializes, chooses partitions and reserves room in the
buffer for all of them. ``queue`` puts them into the batches of their partitions, and neither waits nor fails. Between the
two nothing can be seen of them. Whether they were stored, their transaction tells; no future is made for a record.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from client.errors import CohortError, RecordTooLargeError
from client.producer.acknowledgements import BulkAcknowledgement, Timestamps
from client.producer.batch import (
    BULK_RECORD_MEMORY_BYTES,
    HEADER_MEMORY_BYTES,
    RECORD_OVERHEAD_BYTES,
    ProducerBatch,
)
from client.producer.partition_queue import PartitionQueue
from client.producer.serialization import checked_headers, to_bytes
from client.types.records import Output
from client.types.spans import SendSpan, Spans
from protocol.columns import Headers
from protocol.subscription import TopicPartition

if TYPE_CHECKING:
    from client.producer.producer import Producer


class _Record(NamedTuple):
    queue: PartitionQueue[ProducerBatch]
    key: bytes | None
    value: bytes | None
    headers: Headers
    size: int
    span: SendSpan | None


class PreparedOutputs(NamedTuple):
    """Outputs for which there is room: ``memory`` bytes of the buffer are theirs."""

    records: Sequence[_Record]
    memory: int


_LARGE_BYTES: Final = 1024
"""Outputs from this size on may be too large for a topic, so it is kept of each which record it was made of."""

NO_OUTPUTS: Final = PreparedOutputs((), 0)


class OutputQueue:
    """Queues outputs in a producer, past its own ``send``. The producer is started, and a transaction of it open."""

    def __init__(self, producer: Producer) -> None:
        self._producer = producer
        self.refused: tuple[TopicPartition, int] | None = None
        """Of the first large output that failed: the partition and the offset of the record that it was made of."""
        self._acknowledgement = _Unheard()

    async def prepare(self, returned: object, *, serialized: bool = False) -> PreparedOutputs:
        """What a handler returned, with room for all of it: ``Output``s, one, or None.

        The producer's serializers see keys and values unless these are ``serialized``. Raises what ``Producer.send`` raises
        of any of them, and ``TypeError`` for what is no output. Nothing is reserved then, nor when it is cancelled.
        """
        outputs = _outputs_of(returned)
        if not outputs:
            return NO_OUTPUTS
        producer, accumulator = self._producer, self._producer._accumulator
        for output in outputs:
            if output.topic not in producer._known_topics:
                await producer._look_up(output.topic)
        assert accumulator is not None, "the producer is started"
        records = [self._record(output, serialized=serialized) for output in outputs]
        headers = sum(len(record.headers) for record in records)
        memory = sum(record.size for record in records)
        memory += len(records) * BULK_RECORD_MEMORY_BYTES + headers * HEADER_MEMORY_BYTES
        if memory > producer._pool.capacity:
            raise RecordTooLargeError(
                f"the {len(records)} outputs of one record take {memory} bytes, more than the {producer._pool.capacity} of "
                "the producer's buffer_bytes: raise it, or return fewer"
            )
        if not producer._pool.try_reserve(memory):
            await accumulator.reserve_room(memory)
        return PreparedOutputs(records, memory)

    def queue(self, prepared: PreparedOutputs, source: TopicPartition, offset: int) -> None:
        """Puts them into the batches of their partitions, in their order. They were made of a record of ``source``."""
        producer, accumulator = self._producer, self._producer._accumulator
        assert accumulator is not None, "the producer is started"
        now_ms = producer._clock()
        for queue, key, value, headers, size, span in prepared.records:
            batch = queue.open
            if batch is None or batch.size + size > producer._limits.batch_bytes:
                batch = accumulator.next_batch(queue)
            heard = self._acknowledgement if size < _LARGE_BYTES else _Large(self, source, offset)
            if span is not None:
                heard = _Traced(heard, span)
            batch.append_unheard(key, value, now_ms, headers, size, heard)

    def discard(self, prepared: PreparedOutputs) -> None:
        """Gives their room back; they are not sent."""
        if prepared.memory:
            self._producer._pool.release(prepared.memory)

    def _record(self, output: Output, *, serialized: bool) -> _Record:
        producer = self._producer
        topic, value, key, partition, headers = output
        target = producer._known_topics[topic]
        checked: Headers = ()
        headers_size = 0
        if headers:
            checked, headers_size = checked_headers(headers)
        if key is not None and producer._key_serializer is not None and not serialized:
            key = producer._key_serializer(key, topic, checked)
        if value is not None and producer._value_serializer is not None and not serialized:
            value = producer._value_serializer(value, topic, checked)
        key, value = to_bytes("key", key), to_bytes("value", value)
        size = RECORD_OVERHEAD_BYTES + (0 if key is None else len(key)) + (0 if value is None else len(value))
        size += headers_size
        if size > producer._limits.record_bytes:
            raise producer._limits.too_large(topic, size)
        chosen = target.choose(key, value, size) if partition is None else target.checked(partition)
        return _Record(target.queues[chosen], key, value, checked, size, None)


class TracedOutputQueue(OutputQueue):
    """The same, with a span for each output, whose context travels with it."""

    def __init__(self, producer: Producer, spans: Spans) -> None:
        super().__init__(producer)
        self._spans = spans

    async def prepare(self, returned: object, *, serialized: bool = False) -> PreparedOutputs:
        """As ``OutputQueue.prepare``. The spans begin here, and are children of the one that is current."""
        begun: list[SendSpan] = []
        try:
            outputs = []
            for output in _outputs_of(returned):
                headers = checked_headers(output.headers)[0] if output.headers else ()
                begun.append(self._spans.send(output.topic, headers))
                outputs.append(output._replace(headers=begun[-1].headers))
            records, memory = await super().prepare(outputs, serialized=serialized)
        except BaseException as error:
            for span in begun:
                span.failed(error)
            raise
        return PreparedOutputs(
            [record._replace(span=span) for record, span in zip(records, begun, strict=True)], memory
        )

    def discard(self, prepared: PreparedOutputs) -> None:
        """As ``OutputQueue.discard``."""
        super().discard(prepared)
        for record in prepared.records:
            if record.span is not None:
                record.span.failed(CohortError("it was not sent: the record that it was made of is not done"))


class _Unheard(BulkAcknowledgement):
    """What the outcome of outputs is told: it keeps nothing, for the transaction tells."""

    __slots__ = ()

    def __init__(self) -> None:
        """There is nothing to be told."""

    def deliver(
        self, indexes: Sequence[int], partition: TopicPartition, base_offset: int, timestamp_ms: Timestamps
    ) -> None:
        """They are stored, in an open transaction."""

    def fail(self, count: int, error: CohortError) -> None:
        """Their transaction has failed by ``error``, and says so itself."""


class _Large(_Unheard):
    """What the outcome of one large output is told: of which record it was made, for the case that its topic refuses it."""

    __slots__ = ("_queue", "_source")

    def __init__(self, queue: OutputQueue, source: TopicPartition, offset: int) -> None:
        self._queue = queue
        self._source = source, offset

    def fail(self, count: int, error: CohortError) -> None:
        """It was refused, or failed with its transaction."""
        self._queue.refused = self._queue.refused or self._source


class _Traced(_Unheard):
    """What the outcome of one output is told whose span ends with it; ``heard`` is told the same."""

    __slots__ = ("_heard", "_span")

    def __init__(self, heard: _Unheard, span: SendSpan) -> None:
        self._heard = heard
        self._span = span

    def deliver(
        self, indexes: Sequence[int], partition: TopicPartition, base_offset: int, timestamp_ms: Timestamps
    ) -> None:
        """It is stored, in an open transaction."""
        self._heard.deliver(indexes, partition, base_offset, timestamp_ms)
        self._span.sent(partition.partition, base_offset)

    def fail(self, count: int, error: CohortError) -> None:
        """It was refused, or failed with its transaction."""
        self._heard.fail(count, error)
        self._span.failed(error)


def _outputs_of(returned: object) -> Sequence[Output]:
    if returned is None:
        return ()
    one = isinstance(returned, Output | str | bytes) or not isinstance(returned, Iterable)
    outputs: list[Any] = [returned] if one else list(returned)  # type: ignore[call-overload]
    for output in outputs:
        if not isinstance(output, Output):
            within = "" if one else f"a {type(returned).__name__} with "
            raise TypeError(
                f"the handler of process(handler, producer=...) returned {within}{output!r}; it must return Outputs, "
                "one or an iterable of them, or None"
            )
        if not isinstance(output.topic, str):
            raise TypeError(f"topic of an Output must be a string, not {type(output.topic).__name__} {output.topic!r}")
    return outputs
