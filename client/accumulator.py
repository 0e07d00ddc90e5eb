"""Where a producer gathers records into batches, partition by partition. No I/O, no clock, no tasks.

A partition has one queue of batches, the last of which may still be open, and at most one request under way: what is queued
meanwhile travels with the next one, so batches grow with the load and the order of a partition survives every retry.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Final

from client.delivery import Waiter, split_waiters
from protocol.columns import Headers
from protocol.record_batch import HEADER_BYTES, Compression, encode_batch
from protocol.subscription import TopicPartition

RECORD_OVERHEAD_BYTES: Final = 17
"""What a record takes in a batch beside key, value and headers: two offsets, a timestamp, validity bits; rounded up."""
BATCH_OVERHEAD_BYTES: Final = HEADER_BYTES + 128
"""What a batch takes beside its records: the header and the padding of each column; rounded up."""


class ProducerBatch:
    """Records of one partition that travel together: columns, and who waits for their outcome.

    ``keys`` and ``headers`` are None until a record has one.

    ``size`` estimates the encoded batch in bytes from above (before compression); ``buffered`` is what its records reserved.
    ``created_at`` is the loop's time in seconds when the first record came: linger and delivery timeout count from there.
    ``attempts`` counts requests that carried it. ``settled`` is done once nothing is left to wait for. A batch that is
    ``alone`` shares its request with no other batch of the partition.
    """

    __slots__ = (
        "_encoded", "alone", "attempts", "buffered", "created_at", "headers", "keys", "partition", "settled", "size",
        "timestamps_ms", "values", "waiters",
    )  # fmt: skip

    def __init__(self, partition: TopicPartition, created_at: float) -> None:
        self.partition = partition
        self.created_at = created_at
        self.values: list[bytes | None] = []
        self.keys: list[bytes | None] | None = None
        self.timestamps_ms: list[int] = []
        self.headers: list[Headers] | None = None
        self.waiters: list[Waiter] = []
        self.buffered = 0
        self.size = BATCH_OVERHEAD_BYTES
        self.attempts = 0
        self.alone = False
        self.settled: asyncio.Future[None] | None = None
        self._encoded: bytes | None = None

    @property
    def count(self) -> int:
        """How many records it holds."""
        return len(self.values)

    def append(
        self,
        key: bytes | None,
        value: bytes | None,
        timestamp_ms: int,
        headers: Headers,
        size: int,
        waiter: Waiter,
    ) -> None:
        """Adds one record of ``size`` bytes, ``RECORD_OVERHEAD_BYTES`` included."""
        if headers or self.headers is not None:
            if self.headers is None:
                self.headers = [()] * len(self.values)
            self.headers.append(headers)
        if key is not None or self.keys is not None:
            if self.keys is None:
                self.keys = [None] * len(self.values)
            self.keys.append(key)
        self.values.append(value)
        self.timestamps_ms.append(timestamp_ms)
        self.waiters.append(waiter)
        self.size += size
        self.buffered += size

    def extend(
        self,
        keys: Sequence[bytes | None] | None,
        values: Sequence[bytes | None],
        timestamp_ms: int,
        size: int,
        waiter: Waiter,
    ) -> None:
        """Adds records without headers, ``size`` bytes in all; ``keys=None`` when none has a key."""
        count = len(values)
        if self.headers is not None:
            self.headers.extend([()] * count)
        if keys is not None or self.keys is not None:
            if self.keys is None:
                self.keys = [None] * len(self.values)
            self.keys.extend([None] * count if keys is None else keys)
        self.values.extend(values)
        self.timestamps_ms.extend([timestamp_ms] * count)
        self.waiters.append(waiter)
        self.size += size
        self.buffered += size

    def encode(self, compression: Compression | None) -> bytes:
        """The batch as bytes; made once and kept for retries."""
        if self._encoded is None:
            self._encoded = encode_batch(
                self.values,
                self.keys,
                timestamps_ms=self.timestamps_ms,
                headers=self.headers,
                compression=compression,
            )
        return self._encoded

    def split(self) -> tuple[ProducerBatch, ProducerBatch]:
        """Two batches with half of the records each, to be sent one by one: the daemon found this one too large."""
        middle = self.count // 2
        halves = ProducerBatch(self.partition, self.created_at), ProducerBatch(self.partition, self.created_at)
        waiters = split_waiters(self.waiters, middle)
        buffered = self.buffered // 2, self.buffered - self.buffered // 2
        for half, part, own, size in zip(
            halves, (slice(None, middle), slice(middle, None)), waiters, buffered, strict=True
        ):
            half.values = self.values[part]
            half.keys = None if self.keys is None else self.keys[part]
            half.timestamps_ms = self.timestamps_ms[part]
            half.headers = None if self.headers is None else self.headers[part]
            half.waiters = own
            half.buffered = size
            half.size = BATCH_OVERHEAD_BYTES + size
            half.alone = True
        halves[1].settled = self.settled  # a partition's batches settle in order, so the second half is the last
        return halves


class PartitionQueue:
    """The batches of one partition in order. ``open`` is the last one while it still takes records.

    ``in_flight`` holds the batches of the request under way. ``backing_off`` is set between a failed attempt and the next.
    """

    __slots__ = ("attempts", "backing_off", "batches", "in_flight", "open", "partition")

    def __init__(self, partition: TopicPartition) -> None:
        self.partition = partition
        self.batches: deque[ProducerBatch] = deque()
        self.open: ProducerBatch | None = None
        self.in_flight: list[ProducerBatch] = []
        self.backing_off = False
        self.attempts = 0

    @property
    def idle(self) -> bool:
        """Whether a request may be made for this partition now."""
        return not self.in_flight and not self.backing_off

    def all_batches(self) -> list[ProducerBatch]:
        """Every batch that is not settled yet, in order."""
        return [*self.in_flight, *self.batches]


class Accumulator:
    """All queues of a producer.

    ``batch_size`` bounds a batch in bytes, as estimated before compression; a single larger record gets a batch of its own.
    ``linger_s`` is how long a batch waits for company before it is sent.
    """

    def __init__(self, batch_size: int, linger_s: float) -> None:
        self.batch_size = batch_size
        self.linger_s = linger_s
        self._hurried = 0
        self._queues: dict[TopicPartition, PartitionQueue] = {}
        self._waiting: dict[TopicPartition, PartitionQueue] = {}

    def queue(self, partition: TopicPartition) -> PartitionQueue:
        """The queue of a partition, made at the first call."""
        queue = self._queues.get(partition)
        if queue is None:
            queue = self._queues[partition] = PartitionQueue(partition)
        return queue

    @contextmanager
    def hurry(self) -> Iterator[None]:
        """While inside nothing lingers."""
        self._hurried += 1
        try:
            yield
        finally:
            self._hurried -= 1

    @property
    def queues(self) -> Iterable[PartitionQueue]:
        """All queues, in the order they were made."""
        return self._queues.values()

    def waiting(self) -> list[PartitionQueue]:
        """Queues that have batches and no request under way, in the order they began to wait."""
        return [queue for queue in self._waiting.values() if queue.idle]

    def records(self) -> int:
        """How many records are not settled yet."""
        return sum(batch.count for queue in self._queues.values() for batch in queue.all_batches())

    def open_batch(self, queue: PartitionQueue, size: int, now: float) -> ProducerBatch:
        """The batch that takes the next ``size`` bytes: the open one if they fit, or else a new one."""
        batch = queue.open
        if batch is None or batch.size + size > self.batch_size:
            batch = queue.open = ProducerBatch(queue.partition, now)
            queue.batches.append(batch)
            self._waiting.setdefault(queue.partition, queue)
        return batch

    def is_ready(self, queue: PartitionQueue, now: float) -> bool:
        """Whether the first batch may leave now: it is full, lingered long enough, was tried before, or all must go."""
        head = queue.batches[0]
        return (
            self._hurried > 0
            or len(queue.batches) > 1
            or head is not queue.open
            or head.size >= self.batch_size
            or now >= head.created_at + self.linger_s
        )

    def take(self, queue: PartitionQueue, room: int, now: float) -> list[ProducerBatch]:
        """Moves the ready batches of a queue that fit into ``room`` bytes under way, and gives them.

        None may fit. A batch that goes alone comes alone.
        """
        taken: list[ProducerBatch] = []
        while queue.batches and self.is_ready(queue, now):
            batch = queue.batches[0]
            if batch.size > room or (taken and batch.alone):
                break
            room -= batch.size
            taken.append(queue.batches.popleft())
            if batch is queue.open:
                queue.open = None
            if batch.alone:
                break
        if taken:
            queue.in_flight = taken
            self._waiting.pop(queue.partition, None)
        return taken

    def take_all(self, queue: PartitionQueue) -> None:
        """Moves every batch of a queue under way: what becomes of one becomes of all."""
        queue.in_flight = list(queue.batches)
        queue.batches.clear()
        queue.open = None
        self._waiting.pop(queue.partition, None)

    def settle(self, queue: PartitionQueue, again: Sequence[ProducerBatch] = ()) -> None:
        """Ends the request under way; ``again`` are batches to be sent again, before all others and in this order."""
        queue.in_flight = []
        queue.batches.extendleft(reversed(again))
        if queue.batches:
            self._waiting.setdefault(queue.partition, queue)
        else:
            self._waiting.pop(queue.partition, None)

    def drop_older_than(self, queue: PartitionQueue, created_at: float) -> list[ProducerBatch]:
        """Takes out the batches not under way that were created at or before this time."""
        dropped: list[ProducerBatch] = []
        while queue.batches and queue.batches[0].created_at <= created_at:
            batch = queue.batches.popleft()
            if batch is queue.open:
                queue.open = None
            dropped.append(batch)
        if not queue.batches:
            self._waiting.pop(queue.partition, None)
        return dropped
