"""Hands out to the program what the fetcher has buffered: one record, many, or columns."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Final, TypeVar

from client.consumer.arguments import check_max_records, check_poll_timeout
from client.consumer.assignment import Assignment
from client.consumer.config import ConsumerSettings
from client.consumer.coordinator import ConsumerCoordinator
from client.consumer.fetcher import Fetcher
from client.consumer.positions import Positions
from client.errors import IllegalStateError
from client.group import Membership
from client.types.columns import RecordColumns
from client.types.records import ConsumerRecord
from protocol.subscription import TopicPartition

_YIELD_EVERY_RECORDS: Final = 256
"""Records handed out one by one before other tasks get a turn."""
_ONE_TAKE_RECORDS: Final = 5_000
"""Most records of one ``getmany`` without a limit: so many fit into the processor's caches while they are made, looked at by
the cyclic collector, and used. Ten times as many take half as long again, each."""
_ALL_RECORDS: Final = 2**31

Taken = TypeVar("Taken")


class FetchCollector:
    """The polls of a consumer. Between the look at a buffer and the return to the program there is no await."""

    def __init__(
        self,
        settings: ConsumerSettings,
        coordinator: ConsumerCoordinator,
        assignment: Assignment,
        positions: Positions,
        fetcher: Fetcher,
        news: asyncio.Event,
    ) -> None:
        self._settings = settings
        self._coordinator = coordinator
        self._assignment = assignment
        self._positions = positions
        self._fetcher = fetcher
        self._news = news
        self._since_yield = 0

    async def getone(self, wanted: list[TopicPartition]) -> ConsumerRecord:
        """See ``Consumer.getone``; ``wanted`` are partitions, none for any."""
        membership = self.begin_poll()
        try:
            self._since_yield += 1
            if self._since_yield >= _YIELD_EVERY_RECORDS:
                self._since_yield = 0
                await asyncio.sleep(0)
            while True:
                self._news.clear()
                self._check_poll()
                record = self._assignment.take_one(wanted)
                if self._assignment.freed:
                    self._fetcher.room_came_free()
                if record is not None:
                    return record
                self._fetcher.starving()
                self._raise_partition_error()  # one that this look at the buffers has met
                await self._news.wait()
        finally:
            if membership is not None:
                membership.progress.leave()

    async def getmany(
        self, wanted: frozenset[TopicPartition], timeout_ms: float, max_records: int | None
    ) -> dict[TopicPartition, list[ConsumerRecord]]:
        """See ``Consumer.getmany``."""
        limit = self._limit(max_records, _ONE_TAKE_RECORDS)
        return await self._poll(timeout_ms, lambda: self._assignment.take(limit, wanted))

    async def getmany_columns(
        self, wanted: frozenset[TopicPartition], timeout_ms: float, max_records: int | None
    ) -> dict[TopicPartition, list[RecordColumns]]:
        """See ``Consumer.getmany_columns``."""
        limit = self._limit(max_records, _ALL_RECORDS)
        return await self._poll(timeout_ms, lambda: self._assignment.take_columns(limit, wanted))

    def _limit(self, max_records: int | None, default: int) -> int:
        check_max_records(max_records)
        return max_records or self._settings.max_poll_records or default

    async def _poll(
        self, timeout_ms: float, take: Callable[[], dict[TopicPartition, list[Taken]]]
    ) -> dict[TopicPartition, list[Taken]]:
        check_poll_timeout(timeout_ms)
        membership = self.begin_poll()
        try:
            await asyncio.sleep(0)  # a program that polls in a loop must not keep answers from being read
            loop = asyncio.get_running_loop()
            end_s = loop.time() + timeout_ms / 1000
            while True:
                self._news.clear()
                self._check_poll()
                taken = take()
                if self._assignment.freed:
                    self._fetcher.room_came_free()
                if taken:
                    return taken
                self._fetcher.starving()
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

    def begin_poll(self) -> Membership | None:
        """The program asks for records: what it was handed before is done. Returns the membership whose progress this is."""
        self._check_no_process()
        self._assignment.begin_poll()
        self._coordinator.check_can_read()
        membership = self._coordinator.membership
        if membership is not None:
            membership.progress.enter()
        return membership

    def check(self) -> None:
        """Raises what the program is to hear of: the membership's error, a listener's, a commit's, a partition's."""
        self._coordinator.check()
        self._raise_partition_error()

    def _check_poll(self) -> None:
        self._check_no_process()
        self.check()

    def _check_no_process(self) -> None:
        if self._coordinator.work is not None:
            raise IllegalStateError(
                "process() has the records of this consumer, until it has returned or raised: poll another consumer, or end "
                "it first"
            )

    def _raise_partition_error(self) -> None:
        try:
            self._assignment.raise_error()
        except Exception:
            self._positions.changed()
            raise
