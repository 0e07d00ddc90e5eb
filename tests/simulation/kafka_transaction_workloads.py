"""What transactional programs with Kafka's protocol do: list-append workers, and a group that transforms exactly once."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Callable, Mapping
from functools import partial
from typing import Final

from protocol.kafka.batch import KafkaBatchError
from tests.simulation.consumers import TOPIC, make_topic
from tests.simulation.history import Partition, Sent, name_of
from tests.simulation.kafka_client import MIDDLE, NEW, OLD, KafkaClient
from tests.simulation.kafka_fetches import SIZES, Fetcher, Found
from tests.simulation.kafka_members import KafkaMember, Share
from tests.simulation.kafka_transactions import AbortableError, FencedError, KafkaTransactionalProducer
from tests.simulation.registry import workload
from tests.simulation.transaction_facts import KAFKA_COPIES, KAFKA_TRANSFORMERS, LISTS
from tests.simulation.transaction_workloads import SimLedger
from tests.simulation.world import HostProcess, World

VERSIONS: Final[tuple[Mapping[int, int], ...]] = (OLD, MIDDLE, NEW, NEW)
"""What workers draw from: half of them have an epoch for each transaction."""
_ABORTED_ON_PURPOSE: Final = 0.15
_LONG: Final = 0.03
"""Transactions that are kept open for longer than their timeout."""
BATCHED: Final = (1, 4, 16)
"""Copies in a batch of a transformer."""
MOST_COPIED: Final = 60
"""Records of a partition in one transaction: those of an outage would take longer than its timeout, time and again."""


@workload
async def kafka_transacting(world: World) -> None:
    """List-append workers, two of which have the same transactional id."""
    for number in range(1 + world.plan.producers):
        world.add_host(f"kafka-transactor{number}", partial(kafka_transact, f"kafka-tx-{number // 2}"))
    await world.calm.wait()


async def kafka_transact(transactional_id: str, world: World, process: HostProcess) -> None:
    """Transactions until the calm, by new producers after each that was fenced."""
    await make_topic(process, LISTS, world.plan.partitions)
    await _Worker(world, process, transactional_id).run()


class _Worker:
    """A transactional producer and a reader of committed records, as ``tests.chaos.list_append`` has them."""

    def __init__(self, world: World, process: HostProcess, transactional_id: str) -> None:
        self._world = world
        self._process = process
        self._random = process.random
        self._id = transactional_id
        self._versions = process.random.choice(VERSIONS)
        self._timeout_ms = process.random.choice((1_500, 4_000))
        self._ledger = SimLedger(world, process)
        self._partitions: list[Partition] = [(LISTS, index) for index in range(world.plan.partitions)]
        self._values = itertools.count()
        self._numbers = itertools.count()
        self._client = KafkaClient(process, (LISTS,), process.random.choice((1.0, 3.0)), self._versions)
        self._fetcher = Fetcher(self._client, committed=True)
        self._positions = dict.fromkeys(self._partitions, 0)

    async def run(self) -> None:
        """Works until the calm."""
        while not self._world.calm.is_set():
            producer = KafkaTransactionalProducer(self._process, self._id, (LISTS,), self._timeout_ms, self._versions)
            try:
                while not self._world.calm.is_set():
                    await self._transaction(next(self._numbers), producer)
                    await asyncio.sleep(self._random.choice((0, 0, 0.01, 0.1)))
            except FencedError as error:
                self._ledger.write("error", what="producer", error="FencedError", text=str(error))
                await asyncio.sleep(0.1 + 1.9 * self._random.random())  # the other one with this id has a while
            finally:
                producer.close()
        self._client.close()

    async def _transaction(self, number: int, producer: KafkaTransactionalProducer) -> None:
        await producer.begin(number)
        wanted = "commit"
        try:
            for _ in range(1 + int(self._random.random() * 5)):
                if self._random.random() < 0.6:
                    self._send(number, producer)
                else:
                    await self._poll(number)
                if self._random.random() < 0.4:
                    await self._flush(number, producer)
            if self._random.random() < _LONG:
                await asyncio.sleep(self._timeout_ms / 1000 + 1)
            if self._random.random() < _ABORTED_ON_PURPOSE:
                wanted = "abort"
            else:
                await self._flush(number, producer)
                self._ledger.write("commit", n=number)
                await producer.end(True)
        except AbortableError as error:
            self._ledger.write("error", what="transaction", error="AbortableError", text=str(error))
            wanted = "abort"
        if wanted == "abort":
            self._ledger.write("abort", n=number)
            await producer.end(False)
        self._ledger.write("told", n=number, outcome="committed" if wanted == "commit" else "aborted")

    def _send(self, number: int, producer: KafkaTransactionalProducer) -> None:
        partition = self._random.choice(self._partitions)
        for _ in range(self._random.choice((1, 1, 2, 7))):
            values = [f"{self._process.name}:{next(self._values)}" for _ in range(self._random.choice((1, 1, 5)))]
            for value in values:
                self._ledger.write("send", n=number, tp=name_of(partition), value=value)
            producer.send(partition, values)

    async def _flush(self, number: int, producer: KafkaTransactionalProducer) -> None:
        for value, offset in (await producer.flush()).items():
            self._ledger.write("acknowledged", n=number, value=value, offset=offset)

    async def _poll(self, number: int) -> None:
        try:
            found = await self._fetcher.fetch(self._positions, of_all=True)  # what is noted as read now, not before
        except KafkaBatchError as error:
            self._world.history.say(self._process.name, f"cannot read: {error}")
            return
        reads = {name_of(partition): each.records for partition, each in found.items() if each.records}
        self._ledger.write("poll", n=number, reader=self._process.name, reads=reads)
        self._positions |= {partition: each.next_offset for partition, each in found.items()}


@workload
async def kafka_transforming(world: World) -> None:
    """A group of Kafka's members that copies every record of a topic into another one, exactly once."""
    world.history.transactions.transforming[KAFKA_TRANSFORMERS] = KAFKA_COPIES
    for number in range(world.plan.consumers):
        world.add_host(f"kafka-transformer{number}", kafka_transform)
    await world.calm.wait()


async def kafka_transform(world: World, process: HostProcess) -> None:
    """Copies until the end of the history."""
    await make_topic(process, KAFKA_COPIES, world.plan.partitions)
    await _Transformer(world, process).run(world.finished.is_set)


class _Transformer(KafkaMember):
    """A member whose offsets go with what it makes of the records. Its versions know members in transactions (KIP-447)."""

    def __init__(self, world: World, process: HostProcess) -> None:
        versions = process.random.choice((MIDDLE, NEW))
        # A transaction takes half a second: one for each batch would not copy in time what an outage has left.
        super().__init__(world, process, KAFKA_TRANSFORMERS, (TOPIC,), versions=versions, sizes=SIZES[1:])
        self._versions = versions
        self._timeout_ms = process.random.choice((1_500, 5_000))
        self._numbers = itertools.count()
        self._producer: KafkaTransactionalProducer | None = None

    async def _work(self, share: Share, is_over: Callable[[], bool]) -> None:
        """Reads on from what was committed; after each transaction that was aborted too."""
        positions = await self._committed(share)
        share.positions = positions
        self.share = share
        while self._is_in(share) and not is_over():
            try:
                fetched = await self._fetcher.fetch(share.positions)
            except KafkaBatchError as error:
                self._say(f"cannot read: {error}")
                await asyncio.sleep(0.2)
                continue
            found = {partition: each.first(MOST_COPIED) for partition, each in fetched.items()}
            if not any(each.next_offset > share.positions[partition] for partition, each in found.items()):
                continue
            if self._is_in(share) and await self._copied(share, found):
                share.positions |= {partition: each.next_offset for partition, each in found.items()}
            elif self._is_in(share):
                share.positions = await self._committed(share)
        share.positions = {}

    async def _copied(self, share: Share, found: dict[Partition, Found]) -> bool:
        """Whether the copies of what was found are committed, with its offsets."""
        if self._producer is None:
            self._producer = KafkaTransactionalProducer(
                self.process, f"kafka-tx-{self.process.host}", (KAFKA_COPIES,), self._timeout_ms, self._versions
            )
        producer = self._producer
        try:
            await producer.begin(next(self._numbers))
            try:
                self._copy(producer, found)
                await producer.flush()
                if self.process.random.random() < 0.1:
                    await asyncio.sleep(self.process.random.random() * 2)
                positions = {partition: each.next_offset for partition, each in found.items()}
                await producer.commit_offsets(self.group, positions, share, self.instance)
                await producer.end(True)
            except AbortableError as error:
                self._say(f"aborts: {error}")
                await producer.end(False)
                return False
        except (FencedError, AbortableError) as error:
            self._say(f"needs another producer: {error}")
            producer.close()
            self._producer = None
            return False
        return True

    def _copy(self, producer: KafkaTransactionalProducer, found: dict[Partition, Found]) -> None:
        partitions = self._world.plan.partitions
        most = self.process.random.choice(BATCHED)
        for (_, index), each in found.items():
            place = (KAFKA_COPIES, index % partitions)
            for offset, value in each.records:
                self._world.history.sent[value + "'"] = Sent(self.process.name, offset, place)
            copies = [value + "'" for _, value in each.records]
            for first in range(0, len(copies), most):
                producer.send(place, copies[first : first + most])
