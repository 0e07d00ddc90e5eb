"""Watches a cluster from outside while it is hurt: one record after the other into every partition, and how long none went.

What was acknowledged is read again at the end: each is there once, in order, and so is nothing that was not sent.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
from collections import defaultdict
from collections.abc import AsyncIterator, Sequence
from types import TracebackType
from typing import Final, Self

from client import Admin, CohortError, Consumer, Producer, TopicPartition
from client.errors import TopicAlreadyExistsError
from client.types.descriptions import PartitionDescription
from tests.cluster.processes import Node, Nodes

TOPIC: Final = "probed"
_PAUSE_S: Final = 0.02
_TICK_S: Final = 0.02
_STALL_S: Final = 0.06
_READ_S: Final = 60.0


class Stalls:
    """How long this process did not run although it wanted to: so long nothing can be blamed on the cluster."""

    def __init__(self) -> None:
        self._late: list[tuple[float, float]] = []
        self._task = asyncio.create_task(self._watch())

    def since(self, start: float) -> float:
        """All together, in seconds."""
        return sum(seconds for at, seconds in self._late if at >= start)

    async def stop(self) -> None:
        """Ends it."""
        self._task.cancel()
        await asyncio.gather(self._task, return_exceptions=True)

    async def _watch(self) -> None:
        loop = asyncio.get_running_loop()
        while True:
            before = loop.time()
            await asyncio.sleep(_TICK_S)
            late = loop.time() - before - _TICK_S
            if late > _STALL_S:
                self._late.append((loop.time(), late))


class Probe:
    """Use it as an async context manager on a topic that is there."""

    def __init__(self, address: str, partitions: int, topic: str = TOPIC) -> None:
        self.topic = topic
        self.partitions = partitions
        self.answers: dict[int, list[tuple[float, int, int]]] = defaultdict(list)
        """By partition: when the acknowledgement came, of which number, and at which offset."""
        self.failures: list[CohortError] = []
        self._address = address
        self._loop = asyncio.get_running_loop()
        self._sent: dict[int, int] = defaultdict(int)
        self._stopping = asyncio.Event()
        self._tasks: list[asyncio.Task[None]] = []
        self.stalls = Stalls()

    async def __aenter__(self) -> Self:
        self._producer = Producer(
            self._address, "probe", request_timeout_ms=3_000, delivery_timeout_ms=60_000, linger_ms=0
        )
        await self._producer.start()
        self._tasks = [asyncio.create_task(self._send_to(partition)) for partition in range(self.partitions)]
        await self.acknowledged(self._loop.time(), 30)
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.stop()

    async def stop(self) -> None:
        """Sends no more, and waits for what is under way."""
        self._stopping.set()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        with contextlib.suppress(CohortError):
            await self._producer.stop(timeout=10)
        await self.stalls.stop()

    async def _send_to(self, partition: int) -> None:
        while not self._stopping.is_set():
            number, self._sent[partition] = self._sent[partition], self._sent[partition] + 1
            try:
                stored = await self._producer.send_and_wait(
                    self.topic, f"{partition}:{number}".encode(), partition=partition
                )
            except CohortError as error:
                self.failures.append(error)
                continue
            self.answers[partition].append((self._loop.time(), number, stored.offset))
            await asyncio.sleep(_PAUSE_S)

    async def acknowledged(self, since: float, within_s: float) -> None:
        """Waits until every partition has acknowledged something after ``since``."""
        async with asyncio.timeout(within_s):
            while not all(self.last(partition) > since for partition in range(self.partitions)):
                await asyncio.sleep(0.01)

    def last(self, partition: int) -> float:
        """When the last acknowledgement came; 0 when none has."""
        answers = self.answers[partition]
        return answers[-1][0] if answers else 0.0

    def gap(self, partition: int, since: float) -> float:
        """The longest time between two acknowledgements, the later one after ``since``."""
        times = [at for at, _, _ in self.answers[partition]]
        return max((after - before for before, after in itertools.pairwise(times) if after > since), default=0.0)

    def gaps(self, since: float) -> dict[int, float]:
        """Of all partitions."""
        return {partition: round(self.gap(partition, since), 2) for partition in range(self.partitions)}

    def assert_within(self, bound_s: float, since: float, *, margin_s: float = 1.0) -> None:
        """No partition was without acknowledgements for longer; the margin is for the client and a machine that is busy."""
        gaps = self.gaps(since)
        allowed = bound_s + margin_s + self.stalls.since(since)
        assert max(gaps.values()) <= allowed, f"gaps {gaps}, allowed are {allowed:.1f} s"

    async def assert_nothing_lost(self) -> None:
        """Reads everything: what was acknowledged is there, once, where the acknowledgement said, in order."""
        found: dict[int, dict[int, int]] = defaultdict(dict)
        async with asyncio.timeout(_READ_S):
            for partition, offset, value in await everything(self._address, self.topic, self.partitions):
                found[partition][offset] = int(value.partition(":")[2])
        for partition, answers in self.answers.items():
            there = found[partition]
            lost = [(number, offset) for _, number, offset in answers if there.get(offset) != number]
            assert not lost, f"partition {partition} lost (number, offset) {lost[:5]} of {len(answers)}"
            numbers = [there[offset] for offset in sorted(there)]
            assert numbers == sorted(set(numbers)), f"partition {partition} has records twice or out of order"


async def everything(address: str, topic: str, partitions: int) -> list[tuple[int, int, str]]:
    """Partition, offset and value of all that is committed."""
    rows: list[tuple[int, int, str]] = []
    async with Consumer(bootstrap_servers=address, auto_offset_reset="earliest") as consumer:
        tps = [TopicPartition(topic, partition) for partition in range(partitions)]
        consumer.assign(tps)
        while any((await consumer.lag()).values()):
            for tp, records in (await consumer.getmany(timeout_ms=300)).items():
                rows += [(tp.partition, record.offset, record.value.decode()) for record in records]
    return rows


async def described(admin: Admin, topic: str = TOPIC) -> Sequence[PartitionDescription]:
    """The partitions of a topic as they are now."""
    return (await admin.describe_topics(topic, timeout_ms=3_000))[topic].partitions


async def in_sync(address: str, topic: str = TOPIC, within_s: float = 45.0) -> None:
    """Waits until each partition of a topic is led and all of its replicas are in sync."""
    why = "no node answers"
    try:
        async with asyncio.timeout(within_s), Admin(address) as admin:
            while True:
                with contextlib.suppress(CohortError):
                    behind = [each for each in await described(admin, topic) if not _is_well(each)]
                    if not behind:
                        return
                    why = repr(behind[:2])
                await asyncio.sleep(0.1)
    except TimeoutError:
        raise AssertionError(f"not in sync within {within_s} s: {why}") from None


def _is_well(partition: PartitionDescription) -> bool:
    return partition.leader >= 0 and sorted(partition.in_sync_replicas) == sorted(partition.replicas)


async def leads_most(nodes: Nodes, topic: str = TOPIC) -> Node:
    """The node that leads most partitions of a topic."""
    async with Admin(nodes.address) as admin:
        leaders = [each.leader for each in await described(admin, topic)]
    return max(nodes.nodes, key=lambda node: leaders.count(node.number))


@contextlib.asynccontextmanager
async def probing(nodes: Nodes, partitions: int = 6, **config: str) -> AsyncIterator[Probe]:
    """A topic, and a probe of it, once all replicas are in sync; nothing is lost at the end."""
    async with asyncio.timeout(60), Admin(nodes.address) as admin:
        await created(admin, partitions, config)
    await in_sync(nodes.address)
    async with Probe(nodes.address, partitions) as probe:
        yield probe
        await probe.stop()
        await probe.assert_nothing_lost()
        assert not probe.failures, probe.failures[:3]


async def created(admin: Admin, partitions: int, config: dict[str, str], topic: str = TOPIC) -> None:
    """Makes a topic as soon as all nodes are there to have its replicas."""
    while True:
        try:
            await admin.create_topics({topic: partitions}, config)
            return
        except TopicAlreadyExistsError:
            return  # made by a request whose answer got lost
        except CohortError:
            await asyncio.sleep(0.2)
