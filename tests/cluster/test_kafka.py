"""Kafka's clients on a cluster that loses a leader: librdkafka writes and reads on, and nothing is lost or doubled."""

from __future__ import annotations

import asyncio
import threading
from collections import defaultdict
from pathlib import Path
from types import TracebackType
from typing import Any, Final, Self

import confluent_kafka
import pytest

from client import Admin
from tests.cluster.probe import TOPIC, created, everything, in_sync, leads_most
from tests.cluster.processes import Node, Nodes, running
from tests.cluster.test_matrix import copies_agree

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(240)]
PARTITIONS: Final = 6
_PAUSE_S: Final = 0.01
_WITHIN_S: Final = 60.0


class Traffic:
    """An idempotent producer and a member of a group, each in a thread; numbers count by partition.

    Use it as an async context manager.
    """

    def __init__(self, servers: str) -> None:
        self.acknowledged: dict[int, dict[int, int]] = defaultdict(dict)
        """By partition the offsets of numbers."""
        self.read: dict[int, dict[int, int]] = defaultdict(dict)
        """By partition the numbers at offsets."""
        self.failures: list[str] = []
        self._stopping = threading.Event()
        self._read_all = threading.Event()
        self._threads = [threading.Thread(target=work, args=(servers,)) for work in (self._produce, self._consume)]

    async def __aenter__(self) -> Self:
        for thread in self._threads:
            thread.start()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stopping.set()
        self._read_all.set()
        for thread in self._threads:
            await asyncio.to_thread(thread.join)  # the proxies before the nodes run on this loop

    def _produce(self, servers: str) -> None:
        producer = confluent_kafka.Producer(
            {
                "bootstrap.servers": servers,
                "enable.idempotence": True,
                "linger.ms": 0,
                "socket.timeout.ms": 3_000,
                "reconnect.backoff.max.ms": 500,
                "log_level": 0,
            }
        )
        number = 0
        while not self._stopping.wait(_PAUSE_S):
            for partition in range(PARTITIONS):
                producer.produce(TOPIC, f"{partition}:{number}", partition=partition, on_delivery=self._answered)
            number += 1
            producer.poll(0)
        if left := producer.flush(_WITHIN_S):
            self.failures.append(f"{left} records were not acknowledged")

    def _answered(self, error: Any, message: Any) -> None:
        if error is not None:
            self.failures.append(f"{message.value()}: {error}")
        else:
            self.acknowledged[message.partition()][_number(message.value())] = message.offset()

    def _consume(self, servers: str) -> None:
        consumer = confluent_kafka.Consumer(
            {
                "bootstrap.servers": servers,
                "group.id": "readers",
                "auto.offset.reset": "earliest",
                "session.timeout.ms": 6_000,
                "socket.timeout.ms": 10_000,
                "reconnect.backoff.max.ms": 500,
                "log_level": 0,
            }
        )
        consumer.subscribe([TOPIC])
        while not self._read_all.is_set():
            message = consumer.poll(0.1)
            if message is not None and message.error() is None:
                self.read[message.partition()][message.offset()] = _number(message.value())
        consumer.close()

    async def goes_on(self) -> None:
        """Waits until each partition has more acknowledgements than now, and the reader has more of each."""
        before = [(len(self.acknowledged[index]), len(self.read[index])) for index in range(PARTITIONS)]
        async with asyncio.timeout(_WITHIN_S):
            while not all(
                len(self.acknowledged[index]) > written and len(self.read[index]) > read
                for index, (written, read) in enumerate(before)
            ):
                await asyncio.sleep(0.02)

    async def ends(self) -> None:
        """Sends no more, and waits until all of it is acknowledged and read."""
        self._stopping.set()
        async with asyncio.timeout(_WITHIN_S):
            await asyncio.to_thread(self._threads[0].join)
            while not all(
                self.read[index].get(offset) == number
                for index in range(PARTITIONS)
                for number, offset in self.acknowledged[index].items()
            ):
                await asyncio.sleep(0.05)


def _number(value: bytes) -> int:
    return int(value.partition(b":")[2])


@pytest.mark.parametrize("how", ["kill", "cut"])
async def test_a_leader_goes_while_librdkafka_writes_and_reads(tmp_path: Path, how: str) -> None:
    async with running(tmp_path, kafka=True) as nodes:
        async with asyncio.timeout(60), Admin(nodes.address) as admin:
            await created(admin, PARTITIONS, {})
        await in_sync(nodes.address)
        async with Traffic(nodes.kafka_address) as traffic:
            await traffic.goes_on()
            node = await leads_most(nodes)
            await _lose(nodes, node, how)
            await traffic.goes_on()
            if how == "kill":
                await nodes.start_node(node)
            else:
                await nodes.heal()
            await in_sync(nodes.address)
            await traffic.goes_on()
            await traffic.ends()
        assert not traffic.failures, traffic.failures[:3]
        found: dict[int, list[tuple[int, int]]] = defaultdict(list)
        for index, offset, value in await everything(nodes.address, TOPIC, PARTITIONS):
            found[index].append((offset, _number(value.encode())))
    copies_agree(nodes)
    for index, acknowledged in traffic.acknowledged.items():
        there = sorted(found[index])
        assert [number for _, number in there] == sorted(acknowledged), f"partition {index} lost or doubled records"
        assert there == sorted((offset, number) for number, offset in acknowledged.items())


async def _lose(nodes: Nodes, node: Node, how: str) -> None:
    if how == "kill":
        await nodes.kill(node)
    else:
        nodes.cut_from_nodes(node)
        nodes.cut_from_metadata(node)
        nodes.cut_from_clients(node)
