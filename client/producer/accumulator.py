"""Where a producer gathers records into the batches of their partitions: one by one, in runs, or scattered.

A record waits here while the buffer has no room for it, and never again once it is in a batch.
"""

from __future__ import annotations

import asyncio
from bisect import bisect_right
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import Final

from client.errors import ClosedError, CohortError, IllegalStateError, RequestTimedOutError
from client.producer.acknowledgements import BatchSlice, BulkAcknowledgement, Timestamps
from client.producer.batch import BATCH_OVERHEAD_BYTES, BULK_RECORD_MEMORY_BYTES, HEADER_MEMORY_BYTES, ProducerBatch
from client.producer.buffer_pool import BufferPool
from client.producer.partition_queue import PartitionQueue, PartitionQueues
from client.producer.topic import ProducedTopic
from client.transactions.transaction import Transaction
from protocol.columns import Headers
from protocol.compression import Compression

YIELD_AFTER_RECORDS: Final = 1000
"""Records taken one by one without letting the loop run: a tight loop of sends must not starve the sender."""

Column = Sequence[bytes | None]


@dataclass(frozen=True, slots=True)
class BulkRecords:
    """The records of one ``send_many`` in columns.

    ``keys`` and ``headers`` are None when no record has any. ``timestamps_ms`` is one for all, or one for each. ``sizes``
    are the bytes that each takes in a batch.
    """

    keys: Column | None
    values: Column
    headers: Sequence[Headers] | None
    timestamps_ms: Timestamps
    sizes: Sequence[int]

    def timestamps(self, portion: slice) -> Timestamps:
        """Those of a portion, or the one of all."""
        return self.timestamps_ms if isinstance(self.timestamps_ms, int) else self.timestamps_ms[portion]

    def at(self, indexes: Sequence[int]) -> BulkRecords:
        """The records at some places."""
        keys, headers, times = self.keys, self.headers, self.timestamps_ms
        return BulkRecords(
            None if keys is None else [keys[index] for index in indexes],
            [self.values[index] for index in indexes],
            None if headers is None else [headers[index] for index in indexes],
            times if isinstance(times, int) else [times[index] for index in indexes],
            [self.sizes[index] for index in indexes],
        )


class Accumulator:
    """Fills the batches of ``queues``, at most ``batch_bytes`` each, with room from ``pool``.

    ``wake`` tells the sender that there is something to send. ``unyielded`` counts the records appended one by one since the
    loop ran last. ``max_wait_s`` is how long a call waits for room at most, in seconds. ``transaction`` is the one that
    takes records, if the producer has transactions: a call that waits puts nothing into another.
    """

    def __init__(
        self,
        queues: PartitionQueues[ProducerBatch],
        pool: BufferPool,
        batch_bytes: int,
        compression: Compression | None,
        wake: Callable[[], None],
        max_wait_s: float,
    ) -> None:
        self.unyielded = 0
        self.transaction: Transaction | None = None
        self._pausing = 0
        self._queues = queues
        self._pool = pool
        self._batch_bytes = batch_bytes
        self._compression = compression
        self._most_records = max(
            1, pool.capacity // (4 * BULK_RECORD_MEMORY_BYTES)
        )  # of a portion: it fits in any case
        self._wake = wake
        self._max_wait_s = max_wait_s
        self._loop = asyncio.get_running_loop()
        self._closed = False

    def close(self, reason: str) -> None:
        """Calls that wait for room fail with ``ClosedError``, and so does every later one."""
        self._closed = True
        self._pool.close(reason)

    def next_batch(self, queue: PartitionQueue[ProducerBatch]) -> ProducerBatch:
        """A new batch of a queue whose open batch, if there is one, takes no more."""
        if queue.open is not None:
            self.unyielded = YIELD_AFTER_RECORDS  # a batch is full: let the sender have it
        self._wake()
        batch = ProducerBatch(queue.partition, self._loop.time(), self._compression)
        self._queues.add(queue, batch, is_open=True)
        return batch

    async def pause(self) -> None:
        """Lets the loop run.

        Calls that come meanwhile have to pause, too: records are queued in the order of the calls.
        """
        self._pausing += 1
        self.unyielded = YIELD_AFTER_RECORDS
        transaction = self.transaction
        try:
            await asyncio.sleep(0)
        finally:
            self._pausing -= 1
            if not self._pausing:
                self.unyielded = 0
        self._check_still_in(transaction)

    async def wait_for_room(self, size: int) -> None:
        """As ``reserve_room``, for a record of the transaction that is open, if there is one: it goes into no other."""
        transaction = self.transaction
        await self.reserve_room(size)
        try:
            self._check_still_in(transaction)
        except CohortError:
            self._pool.release(size)
            raise

    def _check_still_in(self, transaction: Transaction | None) -> None:
        if transaction is not None and transaction is not self.transaction:
            if transaction.failure is not None:
                raise transaction.aborted_error()
            raise IllegalStateError("the transaction ended meanwhile: what was not queued by then is not part of it")

    async def reserve_room(self, size: int) -> None:
        """Reserves ``size`` bytes of the buffer; nothing lingers while a call waits for it.

        Raises ``RequestTimedOutError`` when there is no room in time.
        """
        try:
            with self._queues.no_linger():
                self._wake()
                async with asyncio.timeout(self._max_wait_s):
                    await self._pool.reserve(size)
        except TimeoutError as error:
            raise RequestTimedOutError(
                f"the buffer had no room for {size} bytes within {self._max_wait_s * 1000:.0f} ms (buffer_bytes="
                f"{self._pool.capacity}, delivery_timeout_ms): records come faster than they are acknowledged. What "
                "waited for room was not sent"
            ) from error
        if self._closed:
            self._pool.release(size)
            raise ClosedError("the producer was stopped before there was room for this record; it was not sent")

    async def append_run(
        self,
        bulk: BulkAcknowledgement,
        target: ProducedTopic,
        partition: int | None,
        records: BulkRecords,
        indexes: Sequence[int],
    ) -> None:
        """Queues records in portions of a batch, to one partition or (``None``) to the sticky one of the moment.

        ``indexes`` are their places in the input of ``bulk``.
        """
        sizes, ends = records.sizes, list(accumulate(records.sizes))
        most = self._most_records if records.headers is None else self._most_with(records.headers)
        position = base = 0
        while position < len(ends):
            queue = target.queues[target.sticky_partition(sizes[position]) if partition is None else partition]
            room = self._room(queue, sizes[position])
            if partition is None:
                room = min(room, target.sticky.room)
            end = bisect_right(ends, base + room, position, min(len(ends), position + most))
            end = max(position + 1, end)
            size = ends[end - 1] - base
            portion = slice(position, end)
            memory = size + (end - position) * BULK_RECORD_MEMORY_BYTES
            headers = None if records.headers is None else records.headers[portion]
            if headers is not None:
                memory += sum(map(len, headers)) * HEADER_MEMORY_BYTES
            if not self._pool.try_reserve(memory):
                await self.wait_for_room(memory)
            batch = queue.open
            if batch is None or batch.size + size > self._batch_bytes:
                batch = self.next_batch(queue)
            times = records.timestamps(portion)
            keys = None if records.keys is None else records.keys[portion]
            batch.extend(keys, records.values[portion], times, size, BatchSlice(bulk, indexes[portion], times), headers)
            if partition is None:
                target.sticky.produced(size)
            position, base = end, ends[end - 1]
            await self.pause()

    async def append_scattered(
        self,
        bulk: BulkAcknowledgement,
        target: ProducedTopic,
        records: BulkRecords,
    ) -> None:
        """Queues records whose partitions differ, block by block, each block partition by partition."""
        keys, values, sizes = records.keys, records.values, records.sizes
        ends = list(accumulate(sizes))
        block_bytes = min(self._batch_bytes * len(target.partitions), self._pool.capacity // 4)
        start = base = 0
        while start < len(ends):
            end = max(start + 1, bisect_right(ends, base + block_bytes, start))
            for partition, indexes in target.by_partition(keys, values, sizes, range(start, end)).items():
                await self.append_run(bulk, target, partition, records.at(indexes), indexes)
            start, base = end, ends[end - 1]

    def _most_with(self, headers: Sequence[Headers]) -> int:
        """The same as ``_most_records`` for records with so many headers."""
        memory = BULK_RECORD_MEMORY_BYTES + max(map(len, headers), default=0) * HEADER_MEMORY_BYTES
        return max(1, self._pool.capacity // (4 * memory))

    def _room(self, queue: PartitionQueue[ProducerBatch], first: int) -> int:
        """Bytes of records that the next portion for a queue may have: what its open batch takes, or a new one."""
        left = 0 if queue.open is None else self._batch_bytes - queue.open.size
        room = left if left >= first else self._batch_bytes - BATCH_OVERHEAD_BYTES
        return min(room, self._pool.capacity // 2)
