"""Partitions move between nodes under load: what was acknowledged stays, and a move ends, whatever dies on the way."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Any

from client import Admin, Producer
from coordinator.cluster import Cluster
from protocol.codec import decode_message
from protocol.messages import Request
from protocol.messages.cluster import UnregisterBrokerRequest
from protocol.messages.reassignment import (
    AlterPartitionReassignmentsRequest,
    ListPartitionReassignmentsRequest,
    ReassignablePartition,
    ReassignableTopic,
)
from tests.integration.fetched import values
from tests.integration.test_bad_input import raw
from tests.integration.test_bounds import ask

PARTITIONS = 4


async def asked(address: str, request: Request) -> Any:
    """The answer of one node."""
    async with raw(address) as client:
        return decode_message(request.response, await ask(client, request))


async def begin(address: str, targets: Mapping[tuple[str, int], tuple[int, ...]]) -> None:
    """Asks for replicas."""
    topics: dict[str, list[ReassignablePartition]] = {}
    for (name, index), target in targets.items():
        topics.setdefault(name, []).append(ReassignablePartition(index, target))
    wanted = tuple(ReassignableTopic(name, tuple(partitions)) for name, partitions in topics.items())
    answer = await asked(address, AlterPartitionReassignmentsRequest(wanted))
    assert {entry.error_code for topic in answer.responses for entry in topic.partitions} <= {0}, answer


async def done(address: str) -> None:
    """Waits until nothing moves."""
    async with asyncio.timeout(60):
        while (await asked(address, ListPartitionReassignmentsRequest())).topics:
            await asyncio.sleep(0.1)


async def replicas(address: str, topic: str) -> list[tuple[int, ...]]:
    """Of each partition, once all of them are in sync."""
    async with Admin(address) as admin, asyncio.timeout(30):
        while True:
            found = (await admin.describe_topics(topic))[topic].partitions
            if all(set(partition.in_sync_replicas) == set(partition.replicas) for partition in found):
                return [tuple(partition.replicas) for partition in found]
            await asyncio.sleep(0.1)


class Load:
    """Producers that send until they are told to stop, each to a partition of its own."""

    def __init__(self, address: str) -> None:
        self.acknowledged: list[list[bytes]] = [[] for _ in range(PARTITIONS)]
        self._address = address
        self._over = False
        self._tasks = [asyncio.create_task(self._send(index)) for index in range(PARTITIONS)]

    async def _send(self, index: int) -> None:
        async with Producer(self._address, acks="all") as producer:
            while not self._over:
                value = f"{index}-{len(self.acknowledged[index])}".encode()
                await producer.send_and_wait("t", value, partition=index)
                self.acknowledged[index].append(value)
                await asyncio.sleep(0.01)

    async def stop(self) -> None:
        """Returns once all that was sent is acknowledged."""
        self._over = True
        await asyncio.gather(*self._tasks)


async def test_partitions_move_under_load_while_nodes_die() -> None:
    async with Cluster(nodes=4, log_level="error") as cluster, asyncio.timeout(150):
        first, other = cluster.addresses[0], cluster.addresses[1]
        async with Admin(cluster.address) as admin:
            await admin.create_topics({"t": PARTITIONS}, replication_factor=3)
        load = Load(cluster.address)
        all_of = [("t", index) for index in range(PARTITIONS)]
        await begin(first, dict.fromkeys(all_of, (0, 1, 3)))
        await cluster.kill(3)
        await asyncio.sleep(1)
        await cluster.start(3)
        await done(first)
        assert await replicas(other, "t") == [(0, 1, 3)] * PARTITIONS
        await cluster.kill(3)
        await begin(first, dict.fromkeys(all_of, (1, 2, 0)))  # what it has of them is moved away while it is down
        await done(first)
        await cluster.start(3)
        await begin(other, dict.fromkeys(all_of, (3, 2, 1)))  # and comes back
        await done(first)
        assert await replicas(other, "t") == [(3, 2, 1)] * PARTITIONS
        await load.stop()
        found = await values(cluster.address, "t")
        assert [found[index] for index in range(PARTITIONS)] == load.acknowledged


async def test_a_node_that_is_drained_is_stopped_and_forgotten() -> None:
    async with Cluster(nodes=4, log_level="error") as cluster, asyncio.timeout(120):
        first = cluster.addresses[0]
        async with Admin(cluster.address) as admin:
            await admin.create_topics({"t": 30}, replication_factor=2)
        targets = {}
        for name in ("t", "__consumer_offsets", "__transaction_state"):
            for index, present in enumerate(await replicas(first, name)):
                left = [node for node in range(3) if node not in present]
                if 3 in present:
                    targets[name, index] = tuple(left.pop() if node == 3 and left else node for node in present)
        targets = {key: tuple(node for node in target if node != 3) for key, target in targets.items()}
        assert targets
        await begin(first, targets)
        await done(first)
        await cluster.stop(3)
        answer = await asked(first, UnregisterBrokerRequest(3))
        assert (answer.error_code, answer.error_message) == (0, "")
