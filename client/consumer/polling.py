"""The consumer's calls that hand out records and acknowledge them."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from math import inf
from typing import Final, Self, TypeVar

from client.consumer.calls import PartitionCalls, check_offset, partition_of, partitions_of
from client.consumer.rebalance import Participation
from client.consumer.subscription import TopicSelection
from client.consumer.workers import Processing
from client.errors import ClosedError, IllegalStateError
from client.group import Membership
from client.types.columns import RecordColumns
from client.types.records import ConsumerRecord, OffsetAndMetadata
from protocol.subscription import TopicPartition

_BREATH_RECORDS: Final = 256
"""Records handed out one by one before other tasks get a turn."""
_ONE_TAKE_RECORDS: Final = 5_000
"""Most records of one ``getmany`` without a limit: so many fit into the processor's caches while they are made, looked at by
the cyclic collector, and used. Ten times as many take half as long again, each."""
_ALL_RECORDS: Final = 2**31
_MAX_LEASE_S: Final = 86_400

Taken = TypeVar("Taken")
Commitable = Mapping[TopicPartition, int | OffsetAndMetadata] | ConsumerRecord | None


class PollCalls(PartitionCalls):
    """Base of ``Consumer``. Between the look at a buffer and the return to the program there is no await."""

    _participation: Participation
    _selection: TopicSelection
    _membership: Membership | None
    _processing: Processing | None
    _since_breath: int

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> ConsumerRecord:
        try:
            return await self.getone()
        except ClosedError:
            if self._closed:
                raise StopAsyncIteration from None
            raise

    async def getone(self, *tps: TopicPartition) -> ConsumerRecord:
        """The next record, of these partitions or of any; waits until there is one. Cancelling it loses nothing.

        A partition that is not assigned has none until it is. Raises ``ClosedError`` outside ``start`` and ``stop``,
        ``MaxPollIntervalExceededError``, ``TypeError`` for what is no partition,
        ``NoOffsetForPartitionError``, ``CorruptMessageError``, ``RecordDeserializationError``, what a listener raised, and
        what keeps this member out of its group.
        """
        wanted = partitions_of(tps)
        membership = self._begin_poll()
        try:
            self._since_breath += 1
            if self._since_breath >= _BREATH_RECORDS:
                self._since_breath = 0
                await asyncio.sleep(0)
            while True:
                self._news.clear()
                self._check_poll()
                record = self._assignment.take_one(wanted)
                if self._assignment.freed:
                    self._make_room()
                if record is not None:
                    return record
                self._fetcher.hunger()
                self._raise_partition_error()  # one that this look at the buffers has met
                await self._news.wait()
        finally:
            if membership is not None:
                membership.progress.leave()

    async def getmany(
        self, *tps: TopicPartition, timeout_ms: float = 0, max_records: int | None = None
    ) -> dict[TopicPartition, list[ConsumerRecord]]:
        """Buffered records by partition, of these partitions or of all; an empty dict when none came in time.

        Waits up to ``timeout_ms`` for the first ones. At most ``max_records`` (default ``max_poll_records``; 5,000 when
        neither is given). Cancelling it loses nothing. Raises as ``getone``, and ``TypeError`` or ``ValueError`` for a time
        or a number that is none.
        """
        limit, wanted = self._limit(max_records, _ONE_TAKE_RECORDS), frozenset(partitions_of(tps))
        return await self._poll(timeout_ms, lambda: self._assignment.take(limit, wanted))

    async def getmany_columns(
        self, *tps: TopicPartition, timeout_ms: float = 0, max_records: int | None = None
    ) -> dict[TopicPartition, list[RecordColumns]]:
        """Buffered records by partition, as columns: one ``RecordColumns`` for each batch, or part of one.

        For programs that pass records on to Arrow or NumPy: no Python object is made for a record, and nothing is copied.
        Otherwise as ``getmany``, with which it may be mixed: the same positions, limits, commits and errors. Deserializers
        are not called. Without a limit it hands out all that is buffered.
        """
        limit, wanted = self._limit(max_records, _ALL_RECORDS), frozenset(partitions_of(tps))
        return await self._poll(timeout_ms, lambda: self._assignment.take_columns(limit, wanted))

    def _limit(self, max_records: int | None, default: int) -> int:
        if max_records is not None and (isinstance(max_records, bool) or not isinstance(max_records, int)):
            raise TypeError(f"max_records is {max_records!r}; it must be a whole number, or None for max_poll_records")
        if max_records is not None and max_records <= 0:
            raise ValueError(f"max_records is {max_records}; it must be above 0")
        return max_records or self._settings.max_poll_records or default

    async def _poll(
        self, timeout_ms: float, take: Callable[[], dict[TopicPartition, list[Taken]]]
    ) -> dict[TopicPartition, list[Taken]]:
        _check_timeout(timeout_ms)
        membership = self._begin_poll()
        try:
            await asyncio.sleep(0)  # a program that polls in a loop must not keep answers from being read
            loop = asyncio.get_running_loop()
            end_s = loop.time() + timeout_ms / 1000
            while True:
                self._news.clear()
                self._check_poll()
                taken = take()
                if self._assignment.freed:
                    self._make_room()
                if taken:
                    return taken
                self._fetcher.hunger()
                self._raise_partition_error()  # one that this look at the buffers has met
                if loop.time() >= end_s:
                    return taken
                try:
                    async with asyncio.timeout_at(end_s):
                        await self._news.wait()
                except TimeoutError:
                    continue  # a last look
        finally:
            if membership is not None:
                membership.progress.leave()

    def lease(self, record: ConsumerRecord, seconds: float) -> None:
        """Work on ``record`` may take ``seconds`` from now, although ``max_poll_interval_ms`` would be over before that.

        In ``process`` that holds for the handler of this record, and all others are watched as before; otherwise for what
        the last poll handed out, until the next poll. It never shortens the time, and may be renewed for as long as the
        work goes well. A program that is stuck is found when the lease is over, so take it as short as the work allows. It
        holds up no rebalance: a partition that goes to another member takes its records along, lease or no lease.

        Raises ``ValueError`` for a time that is not above 0 or longer than a day, ``IllegalStateError`` when the record is
        not in work here: its partition has gone, or its handler has ended.
        """
        if not 0 < seconds <= _MAX_LEASE_S:
            raise ValueError(
                f"a lease of {seconds} seconds: it must be above 0 and at most {_MAX_LEASE_S}, and can be renewed"
            )
        self._check_running()
        tp = TopicPartition(record.topic, record.partition)
        if self._processing is not None:
            in_work = self._processing.lease(record, seconds)
        else:
            state = self._assignment.states.get(tp)
            in_work = state is not None and record.offset < state.handed_to
            if in_work and self._membership is not None:
                self._membership.progress.lease(seconds)
        if not in_work:
            raise IllegalStateError(
                f"the record at offset {record.offset} of {tp.topic}-{tp.partition} is not in work at this consumer: its "
                "partition was given up, or it is done. Its work may stop"
            )

    async def commit(self, offsets: Commitable = None) -> None:
        """Stores offsets for the group and returns when they are safe.

        ``None``: the positions of all partitions, that is every record handed out so far, those of the latest poll included;
        while ``process`` runs, up to where its handlers have finished.
        A mapping: the next offset to read of each partition. A record: that one and all before it in its partition; one
        that was handed out before its partition was lost and came back is refused, since it comes again.
        Raises ``CommitFailedError`` with the true cause when a partition is not this member's any more,
        ``RequestTimedOutError`` when no daemon answers, ``IllegalStateError`` without a ``group_id``, ``ValueError`` and
        ``TypeError`` for what is no offset.
        """
        self._check_running()
        if offsets is None:
            stored = self._commits.positions() if self._processing is None else self._processing.finished()
        elif isinstance(offsets, ConsumerRecord):
            self._commits.check_handed_out(offsets)
            stored = {TopicPartition(offsets.topic, offsets.partition): OffsetAndMetadata(offsets.offset + 1)}
        else:
            stored = {partition_of(tp): _to_commit(tp, value) for tp, value in offsets.items()}
        await self._commits.commit(stored, self._deadline())

    def _begin_poll(self) -> Membership | None:
        self._check_not_processing()
        self._assignment.begin_poll()
        self._check_open()
        if self._selection.kind is None:
            raise IllegalStateError("nothing to read: subscribe() or assign() first")
        membership = self._membership
        if membership is not None:
            membership.progress.enter()
        return membership

    def _check_open(self) -> None:
        if self._closed:
            raise ClosedError("this consumer was stopped")
        self._check_running()

    def _check_not_processing(self) -> None:
        if self._processing is not None:
            raise IllegalStateError(
                "process() has the records of this consumer, until it has returned or raised: poll another consumer, or end "
                "it first"
            )

    def _check_poll(self) -> None:
        self._check_not_processing()
        self._check()

    def _check(self) -> None:
        self._check_open()
        if self._membership is not None:
            self._membership.check()
        self._participation.raise_error()
        self._commits.raise_error()
        self._raise_partition_error()

    def _raise_partition_error(self) -> None:
        try:
            self._assignment.raise_error()
        except Exception:
            self._changed()
            raise

    def _make_room(self) -> None:
        self._assignment.freed = False
        self._fetcher.wake()


def _check_timeout(timeout_ms: float) -> None:
    if isinstance(timeout_ms, bool) or not isinstance(timeout_ms, int | float):
        raise TypeError(
            f"timeout_ms is {timeout_ms!r}; it must be a number of milliseconds, 0 not to wait. getone() and 'async for' "
            "wait for as long as it takes"
        )
    if not 0 <= timeout_ms < inf:
        raise ValueError(f"timeout_ms is {timeout_ms}; it must be a number of milliseconds from 0 on, and finite")


def _to_commit(tp: TopicPartition, value: int | OffsetAndMetadata) -> OffsetAndMetadata:
    committed = value if isinstance(value, OffsetAndMetadata) else OffsetAndMetadata(value)
    return committed._replace(offset=check_offset(f"the offset to commit of {tp[0]}-{tp[1]}", committed.offset))
