"""Where a producer gathers records into batches, partition by partition. No I/O, no clock, no tasks.

A partition has one queue of batches, the last of which may still be open. What one request carries of it is a parcel.
Without idempotence at most one is under way, or a retry would change the order; with it several are, as the daemon takes
batches by their numbers only. Either way a batch that is not full waits while another is under way, so batches grow with the
load.
"""

from __future__ import annotations

import asyncio
from array import array
from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import islice
from typing import Final

from client.delivery import Waiter, split_waiters
from client.numbering import BatchNumber, Numbering, ProducerIdentity
from protocol.columns import Headers
from protocol.record_batch import HEADER_BYTES, Compression, EncodedBatch, encode_in_pieces
from protocol.subscription import TopicPartition

RECORD_OVERHEAD_BYTES: Final = 17
"""What a record takes in a batch beside key, value and headers: two offsets, a timestamp, validity bits; rounded up."""
BATCH_OVERHEAD_BYTES: Final = HEADER_BYTES + 128
"""What a batch takes beside its records: the header and the padding of each column; rounded up."""
NUMBERED_WINDOW: Final = 5
"""From the oldest numbered batch that is not settled on, so many have been sent at most, settled ones among them: a daemon
recognises the last five when they come again."""


class ProducerBatch:
    """Records of one partition that travel together: columns, and who waits for their outcome.

    ``keys`` and ``headers`` are None until a record has one.

    ``size`` estimates the encoded batch in bytes from above (before compression); ``buffered`` is what its records reserved.
    ``created_at`` is the loop's time in seconds when the first record came: linger and delivery timeout count from there.
    ``attempts`` counts requests that carried it. ``settled`` is done once nothing is left to wait for. A batch that is
    ``alone`` shares its request with no other batch of the partition. ``place`` orders the batches of a partition;
    ``number`` is what an idempotent producer calls it once it was sent, ``ordinal`` counts the numbered ones.
    """

    __slots__ = (
        "_encoded", "alone", "attempts", "buffered", "created_at", "headers", "keys", "number", "ordinal", "partition",
        "place", "settled", "size", "timestamps_ms", "values", "waiters",
    )  # fmt: skip

    def __init__(self, partition: TopicPartition, created_at: float, place: tuple[int, ...] = ()) -> None:
        self.partition = partition
        self.created_at = created_at
        self.place = place
        self.number: BatchNumber | None = None
        self.ordinal = 0
        self.values: list[bytes | None] = []
        self.keys: list[bytes | None] | None = None
        self.timestamps_ms = array("q")
        self.headers: list[Headers] | None = None
        self.waiters: list[Waiter] = []
        self.buffered = 0
        self.size = BATCH_OVERHEAD_BYTES
        self.attempts = 0
        self.alone = False
        self.settled: asyncio.Future[None] | None = None
        self._encoded: EncodedBatch | None = None

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
        self.timestamps_ms.extend(array("q", (timestamp_ms,)) * count)
        self.waiters.append(waiter)
        self.size += size
        self.buffered += size

    def encode(self, compression: Compression | None) -> list[bytes]:
        """The pieces of the batch, with its number if it has one; the body is made once and kept for retries."""
        if self._encoded is None:
            self._encoded = encode_in_pieces(
                self.values,
                self.keys,
                timestamps_ms=self.timestamps_ms,
                headers=self.headers,
                compression=compression,
            )
        return self._encoded.pieces() if self.number is None else self._encoded.pieces(*self.number)

    def split(self) -> tuple[ProducerBatch, ProducerBatch]:
        """Two batches with half of the records each, to be sent one by one: the daemon found this one too large."""
        middle = self.count // 2
        halves = (
            ProducerBatch(self.partition, self.created_at, (*self.place, 0)),
            ProducerBatch(self.partition, self.created_at, (*self.place, 1)),
        )
        if self.number is not None:
            halves[0].number, halves[1].number = self.number, self.number.after(middle)
            halves[0].ordinal = halves[1].ordinal = self.ordinal
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

    ``parcels`` are under way, in the order they were sent. ``backing_off`` is set between a failed attempt and the next.
    ``numbering`` is None without idempotence. ``renumber`` asks for new numbers, which are given once nothing is under way.
    """

    __slots__ = (
        "_numbered", "_opened", "attempts", "backing_off", "batches", "numbering", "open", "parcels", "partition",
        "renumber",
    )  # fmt: skip

    def __init__(self, partition: TopicPartition, numbering: Numbering | None = None) -> None:
        self.partition = partition
        self.batches: deque[ProducerBatch] = deque()
        self.open: ProducerBatch | None = None
        self.parcels: list[Parcel] = []
        self.backing_off = False
        self.attempts = 0
        self.numbering = numbering
        self.renumber = False
        self._opened = 0
        self._numbered = 0

    @property
    def idle(self) -> bool:
        """Whether nothing of this partition is under way and nothing keeps it from being sent."""
        return not self.parcels and self.may_send()

    @property
    def backlog(self) -> int:
        """How many batches are not settled yet."""
        return len(self.batches) + sum(len(parcel.batches) for parcel in self.parcels)

    def may_send(self) -> bool:
        """Whether another parcel of this partition may go now."""
        if self.backing_off:
            return False
        if self.numbering is None:
            return not self.parcels
        if not self.numbering.is_possible:
            return False
        # Nothing of another id or epoch may be under way: only numbers of one row keep the order.
        if self.parcels and (self.renumber or self.numbering.changes):
            return False
        return not self.batches or self.fits_window(self.batches[0])

    def fits_window(self, batch: ProducerBatch, taken: Sequence[ProducerBatch] = ()) -> bool:
        """Whether a daemon would still recognise every batch that may come again if this one is sent with ``taken``."""
        if self.numbering is None or batch.number is not None:
            return True
        # Of those that wait, only the first can have been sent before: what comes again goes to the front.
        unsettled = [*taken, *(other for parcel in self.parcels for other in parcel.batches), *islice(self.batches, 1)]
        oldest = min((other.ordinal for other in unsettled if other.number is not None), default=self._numbered)
        return self._numbered - oldest < NUMBERED_WINDOW

    def all_batches(self) -> list[ProducerBatch]:
        """Every batch that is not settled yet."""
        return [*(batch for parcel in self.parcels for batch in parcel.batches), *self.batches]

    def is_first(self, parcel: Parcel) -> bool:
        """Whether no batch before this parcel is still to be settled."""
        place = parcel.batches[0].place
        return all(batch.place >= place for batch in self.all_batches())

    def open_batch(self, now: float) -> ProducerBatch:
        """A new batch at the end."""
        self._opened += 1
        batch = self.open = ProducerBatch(self.partition, now, (self._opened,))
        self.batches.append(batch)
        return batch

    def put_back(self, batches: Sequence[ProducerBatch]) -> None:
        """Puts batches that were under way to their old place."""
        for batch in reversed(batches):
            at = next(
                (index for index, other in enumerate(self.batches) if other.place > batch.place), len(self.batches)
            )
            self.batches.insert(at, batch)

    def number(self, batch: ProducerBatch) -> None:
        """Gives a batch its number when it is sent for the first time."""
        if self.numbering is not None and batch.number is None:
            batch.number = self.numbering.take(batch.count)
            batch.ordinal = self._numbered
            self._numbered += 1

    def split(self, batch: ProducerBatch) -> tuple[ProducerBatch, ProducerBatch]:
        """Two halves of a batch; together they take the place of two in the window."""
        if batch.number is not None:
            self._numbered += 1
        return batch.split()

    def begin_anew_if_asked(self) -> None:
        """Gives up the numbers of what waits, once nothing is under way: it gets new ones in a new epoch."""
        if self.renumber and not self.parcels and self.numbering is not None:
            self.renumber = False
            self.numbering.begin_anew()
            for batch in self.batches:
                batch.number = None


@dataclass(slots=True, eq=False)
class Parcel:
    """What one request carries of one partition."""

    queue: PartitionQueue
    batches: list[ProducerBatch]


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
        """Queues that have batches to send and may send them, in the order they began to wait."""
        return [queue for queue in self._waiting.values() if queue.may_send()]

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
        parcel = Parcel(queue, [])
        taken = parcel.batches
        while queue.batches and self.is_ready(queue, now):
            batch = queue.batches[0]
            if batch.size > room or (taken and batch.alone) or not queue.fits_window(batch, taken):
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
        if not queue.batches:
            self._waiting.pop(queue.partition, None)
        return parcel

    def take_all(self, queue: PartitionQueue) -> Parcel:
        """Moves every batch that waits into one parcel: what becomes of one becomes of all."""
        parcel = Parcel(queue, list(queue.batches))
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
        queue.begin_anew_if_asked()
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
