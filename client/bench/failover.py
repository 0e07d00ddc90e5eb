"""How long nothing is acknowledged after a node is killed: partitions that it led, and a large group that it coordinated."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import suppress
from statistics import median
from typing import Final

from client.admin import Admin
from client.bench.figures import Figure, Setting
from client.bench.group_failover import seconds_without_heartbeats
from client.bench.replication import NODES, OPTIONS, PARTITIONS, create, in_sync
from client.cli.cluster_processes import ClusterProcess
from client.cli.failure import CommandError
from client.errors import CohortError
from client.producer.producer import Producer

TOPIC: Final = "probed"
SESSION_S: Final = 2.0
_SESSION: Final = "the session of a node: so long it may be silent"
_PAUSE_S: Final = 0.01
_GIVEN_UP_S: Final = 60.0


async def run(setting: Setting) -> AsyncIterator[Figure]:
    """A record at a time into every partition; the node that leads most of them is killed, again and again."""
    runs = 1 if setting.quick else 20
    first: list[float] = []
    every: list[float] = []
    async with ClusterProcess(setting.directory, NODES, *OPTIONS) as cluster:
        await create(cluster.address, {TOPIC: PARTITIONS})
        async with Producer(bootstrap_servers=cluster.address, request_timeout_ms=3_000) as producer:
            probe = _Probe(producer)
            try:
                for _ in range(runs):
                    took = await _after_a_kill(cluster, probe)
                    first.append(min(took))
                    every.append(max(took))
            finally:
                await probe.stop()
        size = 50 if setting.quick else 1_000
        without = await seconds_without_heartbeats(cluster, size)
    params = {"runs": runs, "partitions": PARTITIONS, "session_s": SESSION_S, "metadata": cluster.metadata}
    for name, taken in (("first_partition", first), ("every_partition", every)):
        yield Figure("failover", f"{name}_p50_s", median(taken), "s", SESSION_S, _SESSION, params)
        yield Figure("failover", f"{name}_max_s", max(taken), "s", SESSION_S, _SESSION, params)
    params = {"members": size, "session_s": SESSION_S, "metadata": cluster.metadata, "rebalances": 0}
    yield Figure("failover", "group_heartbeats_s", without, "s", SESSION_S, _SESSION, params)


async def _after_a_kill(cluster: ClusterProcess, probe: _Probe) -> list[float]:
    """Seconds from the SIGKILL to the next acknowledgement, of each partition that the killed node led."""
    async with Admin(bootstrap_servers=cluster.address) as admin:
        leaders = [each.leader for each in (await admin.describe_topics(TOPIC))[TOPIC].partitions]
        node = max((node for node in cluster.running if node != cluster.serving), key=leaders.count)
        hit = [partition for partition, leader in enumerate(leaders) if leader == node]
        if not hit:
            raise CommandError(f"node {node} leads no partition; the leaders are {leaders}")
        killed = asyncio.get_running_loop().time()
        await cluster.kill(node)
        took = await probe.next_after(killed, hit)
        await cluster.start(node)
        async with asyncio.timeout(_GIVEN_UP_S):
            await in_sync(admin, [TOPIC])
    return took


class _Probe:
    """One record after the other into each partition."""

    def __init__(self, producer: Producer) -> None:
        self._producer = producer
        self._last = [0.0] * PARTITIONS
        self._loop = asyncio.get_running_loop()
        self._tasks = [asyncio.create_task(self._send_to(partition)) for partition in range(PARTITIONS)]

    async def next_after(self, moment: float, partitions: Sequence[int]) -> list[float]:
        """Seconds until what was sent after ``moment`` is acknowledged, of each of them."""
        found: dict[int, float] = {}
        async with asyncio.timeout(_GIVEN_UP_S):
            while len(found) < len(partitions):
                for partition in partitions:
                    if partition not in found and self._last[partition] > moment:
                        found[partition] = self._last[partition] - moment
                await asyncio.sleep(0.005)
        return list(found.values())

    async def stop(self) -> None:
        """Ends it."""
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    async def _send_to(self, partition: int) -> None:
        while True:
            with suppress(CohortError):
                await self._producer.send_and_wait(TOPIC, b"v" * 100, partition=partition)
                self._last[partition] = self._loop.time()
            await asyncio.sleep(_PAUSE_S)
