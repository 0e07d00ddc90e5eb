"""Where a producer gathers records into batches, partition by partition. No I/O, no clock, no tasks.

A partition has one queue of batches, the last of which may still be open. A batch that is not full waits while another is
under way, so batches grow with the load.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager

from client.producer.batch import ProducerBatch
from client.producer.partition_queue import Parcel, PartitionQueue
from client.producer.sequences import Numbering, ProducerIdentity
from protocol.subscription import TopicPartition


class Accumulator:
    """All queues of a producer.

    ``batch_size`` bounds a batch in bytes, as estimated before compression; a single larger record gets a batch of its own.
    ``linger_s`` is how long a batch waits for company before it is sent. ``identity`` is that of an idempotent producer.
    """

    def __init__(self, batch_size: int, linger_s: float, identity: ProducerIdentity | None = None) -> None:
        self.batch_size = batch_size
        self.linger_s = linger_s
        self._identity = identity
        self._hurried = 0
        self._queues: dict[TopicPartition, PartitionQueue] = {}
        self._waiting: dict[TopicPartition, PartitionQueue] = {}

    def queue(self, partition: TopicPartition) -> PartitionQueue:
        """The queue of a partition, made at the first call."""
        queue = self._queues.get(partition)
        if queue is None:
            numbering = None if self._identity is None else Numbering(self._identity)
            queue = self._queues[partition] = PartitionQueue(partition, numbering)
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
        """Queues that have batches to send and may send them, those that were served longest ago first."""
        return [queue for queue in self._waiting.values() if queue.may_send()]

    def held_up(self, now: float) -> list[PartitionQueue]:
        """Queues that have batches to send and may not: too much of them is under way, or an attempt has just failed."""
        return [queue for queue in self._waiting.values() if not queue.may_send() and self.is_ready(queue, now)]

    def records(self) -> int:
        """How many records are not settled yet."""
        return sum(batch.count for queue in self._queues.values() for batch in queue.all_batches())

    def open_batch(self, queue: PartitionQueue, size: int, now: float) -> ProducerBatch:
        """The batch that takes the next ``size`` bytes: the open one if they fit, or else a new one."""
        batch = queue.open
        if batch is None or batch.size + size > self.batch_size:
            batch = queue.open_batch(now)
            self._waiting.setdefault(queue.partition, queue)
        return batch

    def is_ready(self, queue: PartitionQueue, now: float) -> bool:
        """Whether the first batch may leave now.

        It is full, or was tried before; or nothing is under way and it lingered long enough, or all must go.
        """
        head = queue.batches[0]
        if len(queue.batches) > 1 or head is not queue.open or head.size >= self.batch_size:
            return True
        return not queue.parcels and (self._hurried > 0 or now >= head.created_at + self.linger_s)

    def take(self, queue: PartitionQueue, room: int, now: float) -> Parcel | None:
        """Moves the ready batches of a queue that fit into ``room`` bytes under way; None when none fits.

        A batch that goes alone comes alone.
        """
        parcel = Parcel(queue, [], first=not queue.parcels)
        taken = parcel.batches
        while queue.batches and self.is_ready(queue, now):
            batch = queue.batches[0]
            if batch.size > room or (taken and batch.alone) or not queue.fits(batch, taken):
                break
            queue.number(batch)
            room -= batch.size
            taken.append(queue.batches.popleft())
            if batch is queue.open:
                queue.open = None
            if batch.alone:
                break
        if not taken:
            return None
        queue.parcels.append(parcel)
        self._waiting.pop(queue.partition, None)
        if queue.batches:  # behind all others: whoever always has more must not keep them from being sent
            self._waiting[queue.partition] = queue
        return parcel

    def take_all(self, queue: PartitionQueue) -> Parcel:
        """Moves every batch that waits into one parcel: what becomes of one becomes of all."""
        parcel = Parcel(queue, list(queue.batches), first=not queue.parcels)
        queue.parcels.append(parcel)
        queue.batches.clear()
        queue.open = None
        self._waiting.pop(queue.partition, None)
        return parcel

    def settle(self, parcel: Parcel, again: Sequence[ProducerBatch] = ()) -> None:
        """A parcel is under way no longer; ``again`` are batches of it to be sent again, at their old place."""
        queue = parcel.queue
        queue.parcels.remove(parcel)
        queue.put_back(again)
        if queue.batches:
            self._waiting.setdefault(queue.partition, queue)
        else:
            self._waiting.pop(queue.partition, None)

    def begin_anew_if_asked(self, queue: PartitionQueue) -> list[ProducerBatch]:
        """See ``PartitionQueue.begin_anew_if_asked``."""
        doubtful = queue.begin_anew_if_asked()
        if doubtful and not queue.batches:
            self._waiting.pop(queue.partition, None)
        return doubtful

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
