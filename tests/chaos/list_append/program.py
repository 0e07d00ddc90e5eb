"""What a list-append worker does: transactions of sends and polls, each step written down before and after.

The chaos runs put it into a process, the simulation on a host. Several of them share a transactional id: one that is fenced
begins anew with the same id, and so fences the other.
"""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from random import Random
from typing import Any, Protocol

from client import CohortError, Consumer, Producer, TopicPartition, TransactionUncertainError
from client.producer.acknowledgements import RecordFuture

_ABORTED_ON_PURPOSE = 0.15
_LONG = 0.03
"""Transactions that are kept open for longer than their timeout."""


class WritesDown(Protocol):
    """A ledger."""

    def write(self, event: str, **fields: Any) -> None:
        """One entry, with the time of now."""


@dataclass(frozen=True, slots=True)
class Setting:
    """What a worker is given: its clients, its partitions, and when it is to end.

    ``at_commit`` is called right before a commit; a client of ``new_producer`` has a transactional id and a transaction
    timeout of ``timeout_s``.
    """

    name: str
    tps: Sequence[TopicPartition]
    random: Random
    ledger: WritesDown
    new_producer: Callable[[], Producer]
    new_consumer: Callable[[], Consumer]
    is_over: Callable[[], bool]
    timeout_s: float
    at_commit: Callable[[], None] = lambda: None


class ListAppend:
    """A transactional producer and a reader of committed records, in one program."""

    def __init__(self, setting: Setting) -> None:
        self._given = setting
        self._random = setting.random
        self._ledger = setting.ledger
        self._numbers = itertools.count()
        self._readers = itertools.count()
        self._reader = ""
        self._sequence = itertools.count()

    async def run(self) -> None:
        """Works until it is over."""
        while not self._given.is_over():
            self._reader = f"{self._given.name}/{next(self._readers)}"
            try:
                async with self._given.new_consumer() as consumer:
                    consumer.assign(self._given.tps)
                    await self._with_producers(consumer)
            except CohortError as error:
                self._note_error("reader", error)
                await asyncio.sleep(0.2)

    async def _with_producers(self, consumer: Consumer) -> None:
        while not self._given.is_over():
            try:
                async with self._given.new_producer() as producer:
                    await self._with(producer, consumer)
            except CohortError as error:
                self._note_error("producer", error)
            await asyncio.sleep(self._random.uniform(0.1, 2.0))  # the other one with this id has a while

    async def _with(self, producer: Producer, consumer: Consumer) -> None:
        while not self._given.is_over():
            number = next(self._numbers)
            try:
                await self._transaction(number, producer, consumer)
            except TransactionUncertainError as error:
                self._note_error("commit", error)
                await self._settle(number, producer)
            except CohortError as error:
                self._note_error("transaction", error)
                if not error.abortable:
                    raise
                await producer.abort_transaction()
                self._tell(number, "aborted")
            await asyncio.sleep(self._random.choice((0, 0, 0.01, 0.1)))

    async def _transaction(self, number: int, producer: Producer, consumer: Consumer) -> None:
        await producer.begin_transaction()
        for _ in range(self._random.randint(1, 6)):
            if self._random.random() < 0.6:
                await self._send(number, producer)
            else:
                await self._poll(number, consumer)
        if self._random.random() < _LONG:
            await asyncio.sleep(self._given.timeout_s + 1)
        if self._random.random() < _ABORTED_ON_PURPOSE:
            self._ledger.write("abort", n=number)
            await producer.abort_transaction()
            self._tell(number, "aborted")
            return
        self._ledger.write("commit", n=number)
        self._given.at_commit()
        await producer.commit_transaction()
        self._tell(number, "committed")

    async def _settle(self, number: int, producer: Producer) -> None:
        while not self._given.is_over():
            try:
                outcome = await producer.settle()
            except TransactionUncertainError as error:
                self._note_error("settle", error)
                continue
            if outcome in ("committed", "aborted"):
                self._tell(number, outcome)
            return

    def _tell(self, number: int, outcome: str) -> None:
        self._ledger.write("told", n=number, outcome=outcome)

    async def _send(self, number: int, producer: Producer) -> None:
        tp = self._random.choice(self._given.tps)
        for _ in range(self._random.choice((1, 1, 1, 5, 20))):
            value = f"{self._given.name}:{next(self._sequence)}"
            self._ledger.write("send", n=number, tp=f"{tp.topic}-{tp.partition}", value=value)
            future = await producer.send(tp.topic, value.encode(), partition=tp.partition)
            future.add_done_callback(partial(self._answered, number, value))

    def _answered(self, number: int, value: str, done: RecordFuture) -> None:
        if not done.cancelled() and done.exception() is None:
            self._ledger.write("acknowledged", n=number, value=value, offset=done.result().offset)

    async def _poll(self, number: int, consumer: Consumer) -> None:
        batches = await consumer.getmany(
            timeout_ms=self._random.choice((0, 20, 100)), max_records=self._random.randint(1, 200)
        )
        reads = {
            f"{tp.topic}-{tp.partition}": [(record.offset, record.value.decode()) for record in records]
            for tp, records in batches.items()
        }
        self._ledger.write("poll", n=number, reader=self._reader, reads=reads)

    def _note_error(self, what: str, error: CohortError) -> None:
        self._ledger.write("error", what=what, error=type(error).__name__, text=str(error))
