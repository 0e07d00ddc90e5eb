"""How the outcome of a batch finds its way back to those who produced its records.

A record of ``send`` has a future of its own. The records of one ``send_many`` share one ``BulkAcknowledgement``, of which
a batch holds a ``BatchSlice``: which of the call's records are in it. So acknowledging thousands of records is one pass at
C speed.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator, Sequence
from itertools import repeat
from typing import Final, cast

from client.errors import CohortError
from client.garbage import without_garbage_collection
from client.log import get_logger
from client.types.records import RecordMetadata
from protocol.subscription import TopicPartition

log = get_logger()

_new_row = tuple.__new__  # RecordMetadata(...) without a Python frame a record

RecordFuture = asyncio.Future[RecordMetadata]
BatchSettled = asyncio.Future[None]
"""Done once nothing is left to wait for in a batch."""

Timestamps = int | Sequence[int]
"""One for all records, or one for each."""
_MetadataParts = tuple[Sequence[int], TopicPartition, int, Timestamps]
"""What the ``RecordMetadata`` of some records of a call is made of: their indexes, partition, first offset, timestamps."""
REPORT_AFTER_S: Final = 1.0
"""How long a program has to ask for the outcome of a failed send: at most one line so often."""
_PARTITIONS_NAMED: Final = 5
_NOWHERE: Final = RecordMetadata("", -1, -1, -1)
_BUILT_AT_ONCE: Final = 20000


class BulkAcknowledgement:
    """The outcome of one ``send_many``: complete once every record of it was acknowledged or failed.

    ``count`` records; ``future`` is done when the last one is, with the first error if any failed, and a note on it that
    says how many did. ``metadata`` gives the results.
    """

    __slots__ = ("_error", "_failed", "_missing", "_parts", "count", "future")

    def __init__(self, count: int, future: asyncio.Future[None]) -> None:
        self.count = count
        self.future = future
        self._parts: list[_MetadataParts] = []
        self._missing = count
        self._failed = 0
        self._error: CohortError | None = None

    def deliver(
        self, indexes: Sequence[int], partition: TopicPartition, base_offset: int, timestamp_ms: Timestamps
    ) -> None:
        """Notes where the records at ``indexes`` of the input went: to consecutive offsets, or to -1 without acks."""
        self._parts.append((indexes, partition, base_offset, timestamp_ms))
        self._settle(len(indexes))

    def fail(self, count: int, error: CohortError) -> None:
        """Notes that ``count`` records failed. The first error is the one that is raised."""
        self._failed += count
        self._error = self._error or error
        self._settle(count)

    async def metadata(self) -> list[RecordMetadata]:
        """The metadata of every record in the order of the input. To be called once ``future`` is done.

        Lets the loop run now and then: a million records take a tenth of a second.
        """
        metadata: list[RecordMetadata] = [_NOWHERE] * self.count
        parts = iter(self._parts)
        while portion := _some_of(parts):
            with without_garbage_collection():
                for indexes, partition, base_offset, timestamp_ms in portion:
                    _fill(metadata, indexes, partition, base_offset, timestamp_ms)
            await asyncio.sleep(0)
        return metadata

    def _settle(self, count: int) -> None:
        self._missing -= count
        if self._missing or self.future.done():
            return
        if self._error is None:
            self.future.set_result(None)
        else:
            were = "was" if self._failed == 1 else "were"
            self._error.add_note(
                f"{self._failed} of the {self.count} records of this send_many {were} not acknowledged"
            )
            self.future.set_exception(self._error)


def _some_of(parts: Iterator[_MetadataParts]) -> list[_MetadataParts]:
    """The next parts, of about ``_BUILT_AT_ONCE`` records; none at the end."""
    portion: list[_MetadataParts] = []
    records = 0
    for part in parts:
        portion.append(part)
        records += len(part[0])
        if records >= _BUILT_AT_ONCE:
            break
    return portion


def _fill(
    metadata: list[RecordMetadata],
    indexes: Sequence[int],
    partition: TopicPartition,
    base_offset: int,
    timestamp_ms: Timestamps,
) -> None:
    count = len(indexes)
    offsets = range(base_offset, base_offset + count) if base_offset >= 0 else repeat(-1, count)
    times = repeat(timestamp_ms) if isinstance(timestamp_ms, int) else timestamp_ms
    fields = zip(repeat(partition.topic), repeat(partition.partition), offsets, times)
    rows = map(_new_row, repeat(RecordMetadata), fields)
    if isinstance(indexes, range):
        metadata[indexes.start : indexes.stop] = rows
    else:
        for index, row in zip(indexes, rows, strict=True):
            metadata[index] = row


class BatchSlice:
    """Those records of one ``send_many`` that are in one batch: ``indexes`` into its input, ascending.

    ``timestamp_ms`` is one for all of them, or one for each.
    """

    __slots__ = ("bulk", "indexes", "timestamp_ms")

    def __init__(self, bulk: BulkAcknowledgement, indexes: Sequence[int], timestamp_ms: Timestamps) -> None:
        self.bulk = bulk
        self.indexes = indexes
        self.timestamp_ms = timestamp_ms

    def split(self, at: int) -> tuple[BatchSlice, BatchSlice]:
        """The first ``at`` records and the rest."""
        times = self.timestamp_ms
        first, rest = (times, times) if isinstance(times, int) else (times[:at], times[at:])
        return BatchSlice(self.bulk, self.indexes[:at], first), BatchSlice(self.bulk, self.indexes[at:], rest)


Waiter = RecordFuture | BatchSlice
"""What is told the outcome of one record (a future) or of several in a row (a slice)."""


def records_of(waiter: Waiter) -> int:
    """How many records a waiter stands for."""
    return len(waiter.indexes) if isinstance(waiter, BatchSlice) else 1


def split_waiters(waiters: Sequence[Waiter], at: int) -> tuple[list[Waiter], list[Waiter]]:
    """The waiters of the first ``at`` records and those of the rest; a slice across the border is cut."""
    first: list[Waiter] = []
    rest: list[Waiter] = []
    left = at
    for waiter in waiters:
        count = records_of(waiter)
        if count <= left:
            first.append(waiter)
        elif left > 0 and isinstance(waiter, BatchSlice):
            head, tail = waiter.split(left)
            first.append(head)
            rest.append(tail)
        else:
            rest.append(waiter)
        left = max(0, left - count)
    return first, rest


def deliver(
    waiters: Sequence[Waiter],
    timestamps_ms: Sequence[int],
    partition: TopicPartition,
    base_offset: int,
    log_append_time_ms: int,
) -> None:
    """Tells each waiter of a batch where its records went.

    ``base_offset`` is the offset of the batch's first record, -1 without acks. ``log_append_time_ms`` is -1 when the records
    keep their own timestamps.
    """
    topic, index = partition
    position = 0
    if BatchSlice not in set(map(type, waiters)):  # futures, one a record
        offsets = repeat(-1) if base_offset < 0 else range(base_offset, base_offset + len(waiters))
        times = timestamps_ms if log_append_time_ms < 0 else repeat(log_append_time_ms)
        fields = zip(repeat(topic), repeat(index), offsets, times)
        futures = cast("Sequence[RecordFuture]", waiters)
        for future, row in zip(futures, map(_new_row, repeat(RecordMetadata), fields), strict=False):
            if not future.done():
                future.set_result(row)
        return
    for waiter in waiters:
        offset = base_offset + position if base_offset >= 0 else -1
        if isinstance(waiter, BatchSlice):
            timestamp_ms = waiter.timestamp_ms if log_append_time_ms < 0 else log_append_time_ms
            waiter.bulk.deliver(waiter.indexes, partition, offset, timestamp_ms)
            position += len(waiter.indexes)
        else:
            if not waiter.done():
                timestamp_ms = timestamps_ms[position] if log_append_time_ms < 0 else log_append_time_ms
                waiter.set_result(_new_row(RecordMetadata, (topic, index, offset, timestamp_ms)))
            position += 1


def fail(waiters: Sequence[Waiter], error: Callable[[], CohortError]) -> list[RecordFuture]:
    """Gives each waiter an error of its own, made by ``error``, so that no two share a traceback.

    Returns the futures that failed by it.
    """
    failed: list[RecordFuture] = []
    for waiter in waiters:
        if isinstance(waiter, BatchSlice):
            waiter.bulk.fail(len(waiter.indexes), error())
        elif not waiter.done():
            waiter.set_exception(error())
            failed.append(waiter)
    return failed


class UnretrievedFailures:
    """Failed sends whose outcome the program has not asked for: told in one line, not in one a record.

    asyncio reports each future whose exception was never retrieved. A program that sends without waiting would get thousands
    of those when its daemon is gone, so a producer looks at its failed futures itself, ``REPORT_AFTER_S`` later, and at its
    end. A future whose exception was told in the log still raises it when it is awaited. ``client_id`` names the producer.
    """

    def __init__(self, client_id: str) -> None:
        self._client_id = client_id
        self._loop = asyncio.get_running_loop()
        self._failed: list[tuple[TopicPartition, CohortError, Sequence[RecordFuture]]] = []
        self._timer: asyncio.TimerHandle | None = None

    def add(self, partition: TopicPartition, error: CohortError, futures: Sequence[RecordFuture]) -> None:
        """Takes note of the futures of one batch, which failed by ``error``."""
        if futures:
            self._failed.append((partition, error, futures))
            if self._timer is None:
                self._timer = self._loop.call_later(REPORT_AFTER_S, self.report)

    def report(self) -> None:
        """Says now how many records failed unnoticed, and why the first of them did."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        failed, self._failed = self._failed, []
        unnoticed: dict[TopicPartition, CohortError] = {}
        count = 0
        for partition, error, futures in failed:
            for future in futures:
                if future._log_traceback:  # asyncio's own note that the exception was not retrieved
                    future.exception()  # so that asyncio has nothing to report of it
                    unnoticed.setdefault(partition, error)
                    count += 1
        if count:
            names = [f"{topic}-{index}" for topic, index in unnoticed]
            more = [f"and {len(names) - _PARTITIONS_NAMED} more"] if len(names) > _PARTITIONS_NAMED else []
            log.error(
                "sends_failed_unnoticed",
                reason="they were not acknowledged, and the program has not asked for the outcome",
                records=count,
                client_id=self._client_id,
                partitions=", ".join(names[:_PARTITIONS_NAMED] + more),
                error=str(next(iter(unnoticed.values()))),
            )
