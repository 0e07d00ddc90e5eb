"""What many partitions cost a cluster: made, led again after a node has died, found at a start, and idle."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from time import perf_counter
from typing import Final

from client.admin import Admin
from client.bench.failover import SESSION_S
from client.bench.figures import Figure, Setting
from client.bench.replication import NODES, OPTIONS, in_sync
from client.cli.cluster_processes import ClusterProcess
from client.cli.failure import CommandError
from client.errors import CohortError
from client.producer.producer import Producer

TOPIC: Final = "wide"
_EMPTY: Final = "the same node before there is a topic"
_PARTITIONS: Final = 10_000
_READY_S: Final = 60.0
_GIVEN_UP_S: Final = 600.0
_OPENED_S: Final = 60.0
"""Partitions are made before their logs are: so long after them nodes are idle."""
_IDLE_S: Final = 10.0
_ROUND: Final = "a record to each partition, acknowledged by all, while the nodes live"
_SESSION: Final = "the session of a node; its process is gone, so others need not wait for the end of it"


async def run(setting: Setting) -> AsyncIterator[Figure]:
    """One topic with all partitions, three replicas each."""
    partitions = 30 if setting.quick else _PARTITIONS
    limits = ("--max-partitions", "20000", "--max-partitions-per-topic", "20000")
    async with ClusterProcess(setting.directory, NODES, *OPTIONS, *limits) as cluster:
        params = {"partitions": partitions, "replicas": NODES, "metadata": cluster.metadata}
        node = next(node for node in reversed(cluster.running) if node != cluster.serving)
        async with asyncio.timeout(_GIVEN_UP_S), Admin(bootstrap_servers=cluster.address) as admin:
            idle_s = 0.5 if setting.quick else _IDLE_S
            empty_mb, empty_share = _resident_mb(cluster), await _idle_percent(cluster[node].pid, idle_s)
            began = perf_counter()
            await _create(admin, partitions)
            yield Figure("metadata", "created_s", perf_counter() - began, "s", params=params)
            await in_sync(admin, [TOPIC])
            yield Figure("metadata", "all_in_sync_s", perf_counter() - began, "s", params=params)
            yield Figure("metadata", "memory_of_a_node_mb", _resident_mb(cluster), "MB", empty_mb, _EMPTY, params)
            await asyncio.sleep(0.1 if setting.quick else _OPENED_S)
            share = await _idle_percent(cluster[node].pid, idle_s)
            yield Figure("metadata", "idle_cpu_percent", share, "%", empty_share, _EMPTY, params)
            async with Producer(cluster.address) as producer:
                await _acknowledged(producer, partitions)  # once all logs are open
                round_s = await _acknowledged(producer, partitions)
                await cluster.kill(node)
                led, acknowledged = await asyncio.gather(
                    _led_by_others(admin, node), _acknowledged(producer, partitions)
                )
            yield Figure("metadata", "all_led_again_s", led, "s", SESSION_S, _SESSION, params)
            yield Figure("metadata", "all_acknowledged_again_s", acknowledged, "s", round_s, _ROUND, params)
            began = perf_counter()
            await cluster.start(node)
            yield Figure("metadata", "start_of_a_node_s", perf_counter() - began, "s", params=params)
            await in_sync(admin, [TOPIC])
            yield Figure("metadata", "in_sync_again_s", perf_counter() - began, "s", params=params)


async def _create(admin: Admin, partitions: int) -> None:
    limit = perf_counter() + _READY_S
    while True:
        try:
            await admin.create_topics({TOPIC: partitions}, timeout_ms=300_000)
            return
        except CohortError as error:
            if perf_counter() > limit:
                raise CommandError(f"no topic with {partitions} partitions: {error}") from error
            await asyncio.sleep(0.2)


async def _acknowledged(producer: Producer, partitions: int) -> float:
    """Seconds until a record to each partition is acknowledged by all of its replicas in sync."""
    began = perf_counter()
    await asyncio.gather(*[await producer.send(TOPIC, b"x", partition=index) for index in range(partitions)])
    return perf_counter() - began


async def _idle_percent(pid: int, seconds: float) -> float:
    """Of a core, in the main thread of a node that nobody asks for anything."""
    before = _cpu_s(pid)
    await asyncio.sleep(seconds)
    return (_cpu_s(pid) - before) / seconds * 100


async def _led_by_others(admin: Admin, node: int) -> float:
    """Seconds until each partition has a leader that is not ``node``."""
    began = perf_counter()
    while True:
        partitions = (await admin.describe_topics(TOPIC))[TOPIC].partitions
        if all(each.leader not in (-1, node) for each in partitions):
            return perf_counter() - began
        await asyncio.sleep(0.02)


def _resident_mb(cluster: ClusterProcess) -> float:
    """Of the node that has most."""
    return max(cluster[node].resident_bytes("VmRSS") for node in cluster.running) / 1e6


def _cpu_s(pid: int) -> float:
    """Of its main thread, which has the event loop."""
    return int(Path(f"/proc/{pid}/schedstat").read_text().split()[0]) / 1e9
