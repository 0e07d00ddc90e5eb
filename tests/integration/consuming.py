"""What tests of consumers share: topics filled with numbers, and waiting for a condition with a bound."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable
from typing import Any

from client import Admin, Consumer, ConsumerRecord, Producer, RebalanceListener, TopicPartition

QUICK: dict[str, Any] = {"session_timeout_ms": 6_000, "heartbeat_interval_ms": 100, "auto_offset_reset": "earliest"}
"""Settings of consumers that notice soon what happens. A session outlives what a busy machine keeps from a process."""
BRIEF: dict[str, Any] = {**QUICK, "session_timeout_ms": 1_000}
"""The same for tests that wait until a session is over."""


async def until(condition: Callable[[], bool], seconds: float = 30) -> None:
    """Waits for ``condition``; fails when it does not come true in time."""
    async with asyncio.timeout(seconds):
        while not condition():
            await asyncio.sleep(0.005)


async def until_told(condition: Callable[[], bool], told: Callable[[], object], seconds: float = 40) -> None:
    """The same, and fails with what ``told`` says then."""
    try:
        await until(condition, seconds)
    except TimeoutError:
        raise AssertionError(f"it did not come about: {told()}") from None


async def create(address: str, **topics: int) -> None:
    async with Admin(address) as admin:
        await admin.create_topics(topics)


async def fill(address: str, topic: str, numbers: Iterable[int], partition: int | None = None) -> None:
    """Sends numbers as text; spread over the partitions by their own value unless one is given."""
    async with Producer(address) as producer:
        if partition is not None:
            await producer.send_many(topic, [b"%d" % number for number in numbers], partition=partition)
            return
        count = len(await producer.partitions_for(topic))
        by_partition: dict[int, list[bytes]] = {}
        for number in numbers:
            by_partition.setdefault(number % count, []).append(b"%d" % number)
        for index, values in by_partition.items():
            await producer.send_many(topic, values, partition=index)


async def take(consumer: Consumer, count: int, seconds: float = 30) -> list[int]:
    """The next ``count`` numbers, one by one."""
    async with asyncio.timeout(seconds):
        return [int((await consumer.getone()).value) for _ in range(count)]


class Reader:
    """A program that reads a consumer to its end in a task of its own."""

    def __init__(self, consumer: Consumer) -> None:
        self.consumer = consumer
        self.records: list[ConsumerRecord] = []
        self.task = asyncio.create_task(self._read())

    async def _read(self) -> None:
        async for record in self.consumer:
            self.records.append(record)

    @property
    def numbers(self) -> list[int]:
        return [int(record.value) for record in self.records]


class Journal(RebalanceListener):
    """Writes down what it is told."""

    def __init__(self) -> None:
        self.events: list[tuple[str, list[tuple[str, int]]]] = []
        self.reasons: list[str] = []

    def on_partitions_revoked(self, tps: frozenset[TopicPartition], reason: str) -> None:
        self._note("revoked", tps, reason)

    async def on_partitions_assigned(self, tps: frozenset[TopicPartition], reason: str) -> None:
        self._note("assigned", tps, reason)

    def on_partitions_lost(self, tps: frozenset[TopicPartition], reason: str) -> None:
        self._note("lost", tps, reason)

    def _note(self, what: str, tps: frozenset[TopicPartition], reason: str) -> None:
        self.events.append((what, [(topic, partition) for topic, partition in sorted(tps)]))
        self.reasons.append(reason)
