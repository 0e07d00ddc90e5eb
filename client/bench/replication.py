"""What three replicas cost: an acknowledgement of all, records in bulk, and a replica that catches up."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack
from pathlib import Path
from statistics import median, quantiles
from time import perf_counter
from typing import Final

from client.admin import Admin
from client.bench import bare_replica
from client.bench.figures import Figure, Setting
from client.bench.records import values
from client.cli.cluster_processes import ClusterProcess
from client.cli.failure import CommandError
from client.cli.processes import ServerProcess
from client.errors import CohortError, TopicAlreadyExistsError
from client.producer.producer import Producer

ONE: Final = "one"
MANY: Final = "many"
NODES: Final = 3
PARTITIONS: Final = 12
OPTIONS: Final = ("--log-level", "error", "--default-replication-factor", "3", "--node-session-ms", "2000")
_VALUE: Final = 1024
_BULK_RECORDS: Final = 20_000
_FRAME: Final = 1024 * 1024
_AHEAD: Final = 4
_READY_S: Final = 60.0
_CAUGHT_UP_S: Final = 300.0
_BARE: Final = "three bare processes: frame, write, fdatasync, followers before the leader's sync"
_BARE_COPY: Final = "two bare processes: socket, write, fdatasync every MiB"


async def run(setting: Setting) -> AsyncIterator[Figure]:
    """Cohort and floor take turns; the medians of the rounds count."""
    rounds, count = (1, 60) if setting.quick else (3, 2_000)
    megabytes = 2 if setting.quick else 100
    content = values(megabytes * 1_000_000 // _VALUE, _VALUE)
    latencies: list[list[float]] = []
    bare: list[list[float]] = []
    rates: list[float] = []
    bare_rates: list[float] = []
    async with ClusterProcess(setting.directory, NODES, *OPTIONS) as cluster:
        await create(cluster.address, {ONE: 1, MANY: PARTITIONS})
        async with Producer(bootstrap_servers=cluster.address) as producer:
            await producer.send_many(MANY, content[:1000])
            for _ in range(rounds):
                latencies.append(await _one_by_one(producer, count))
                bare.append(await _bare_latencies(setting.directory, count))
                rates.append(megabytes / await _in_bulk(producer, content))
                bare_rates.append(await _bare_rate(setting.directory, megabytes, followers=2))
            params = {"value_bytes": _VALUE, "replicas": NODES, "acks": "all", "rounds": rounds}
            for place, name in ((49, "p50"), (98, "p99")):
                took, floor = (median(quantiles(each, n=100)[place] for each in found) for found in (latencies, bare))
                yield Figure(
                    "replication", f"acks_all_{name}_ms", took, "ms", floor, _BARE, {**params, "records": count}
                )
            params = {**params, "partitions": PARTITIONS, "records": len(content)}
            yield Figure("replication", "send_many_mb_per_s", median(rates), "MB/s", median(bare_rates), _BARE, params)
            copied = await _caught_up(cluster, producer, content)
    floor = await _bare_rate(setting.directory, megabytes, followers=0)
    params = {"value_bytes": _VALUE, "partitions": PARTITIONS, "megabytes": megabytes}
    yield Figure("replication", "catch_up_mb_per_s", megabytes / copied, "MB/s", floor, _BARE_COPY, params)


async def create(address: str, topics: dict[str, int]) -> None:
    """Makes topics as soon as there are nodes enough, and waits until all of their replicas are in sync."""
    async with asyncio.timeout(_READY_S), Admin(bootstrap_servers=address) as admin:
        for topic, partitions in topics.items():
            while True:
                try:
                    await admin.create_topics({topic: partitions})
                    break
                except TopicAlreadyExistsError:
                    break  # made by a request whose answer got lost
                except CohortError:
                    await asyncio.sleep(0.2)
        await in_sync(admin, topics)


async def in_sync(admin: Admin, topics: Sequence[str] | dict[str, int]) -> None:
    """Waits until every partition is led and all of its replicas are in sync."""
    while True:
        described = await admin.describe_topics(*topics)
        partitions = [each for topic in described.values() for each in topic.partitions]
        if all(each.leader >= 0 and sorted(each.in_sync_replicas) == sorted(each.replicas) for each in partitions):
            return
        await asyncio.sleep(0.05)


async def _one_by_one(producer: Producer, count: int) -> list[float]:
    content = b"v" * _VALUE
    taken = []
    for _ in range(count):
        began = perf_counter()
        await producer.send_and_wait(ONE, content)
        taken.append((perf_counter() - began) * 1000)
    return taken


async def _in_bulk(producer: Producer, content: list[bytes]) -> float:
    lists = iter([content[start : start + _BULK_RECORDS] for start in range(0, len(content), _BULK_RECORDS)])

    async def send_next() -> None:
        for each in lists:
            await producer.send_many(MANY, each)

    began = perf_counter()
    await asyncio.gather(*(send_next() for _ in range(_AHEAD)))
    return perf_counter() - began


async def _caught_up(cluster: ClusterProcess, producer: Producer, content: list[bytes]) -> float:
    """Seconds from the start of a node that has missed ``content`` until it is in sync with all of it."""
    node = next(node for node in reversed(cluster.running) if node != cluster.serving)
    await cluster.kill(node)
    await _in_bulk(producer, content)
    async with Admin(bootstrap_servers=cluster.address) as admin:
        await cluster.start(node)
        began = perf_counter()
        try:
            async with asyncio.timeout(_CAUGHT_UP_S):
                await in_sync(admin, [MANY])
        except TimeoutError:
            raise CommandError(f"node {node} was not in sync {_CAUGHT_UP_S:.0f} s after its start") from None
        return perf_counter() - began


# The floor


async def _bare_latencies(directory: Path, count: int) -> list[float]:
    async with AsyncExitStack() as stack:
        connection = await _bare(stack, directory, followers=2)
        return await asyncio.to_thread(_acknowledged_one_by_one, connection, count)


async def _bare_rate(directory: Path, megabytes: int, followers: int) -> float:
    """MB/s."""
    async with AsyncExitStack() as stack:
        connection = await _bare(stack, directory, followers)
        frames = max(1, megabytes * 1_000_000 // _FRAME)
        took = await asyncio.to_thread(_acknowledged_in_bulk, connection, frames)
    return frames * _FRAME / 1e6 / took


async def _bare(stack: AsyncExitStack, directory: Path, followers: int) -> socket.socket:
    own = directory / f"bare-{perf_counter()}"
    own.mkdir()
    module = ("-m", "client.bench.bare_replica")
    running = [
        await stack.enter_async_context(ServerProcess("a bare follower", *module, "follower", str(own)))
        for _ in range(followers)
    ]
    ports = [each.address.rpartition(":")[2] for each in running]
    role = "leader" if ports else "follower"
    leader = await stack.enter_async_context(ServerProcess("a bare leader", *module, role, str(own), *ports))
    connection = socket.create_connection(("127.0.0.1", int(leader.address.rpartition(":")[2])))
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    stack.callback(connection.close)
    return connection


def _acknowledged_one_by_one(connection: socket.socket, count: int) -> list[float]:
    content = b"v" * (_VALUE + 100)
    frame = bare_replica.LENGTH.pack(len(content)) + content
    taken = []
    for _ in range(count):
        began = perf_counter()
        connection.sendall(frame)
        bare_replica.receive(connection, len(bare_replica.ACK))
        taken.append((perf_counter() - began) * 1000)
    return taken


def _acknowledged_in_bulk(connection: socket.socket, frames: int) -> float:
    frame = bare_replica.LENGTH.pack(_FRAME) + b"v" * _FRAME
    began = perf_counter()
    for sent in range(frames + _AHEAD):
        if sent < frames:
            connection.sendall(frame)
        if sent >= _AHEAD:
            bare_replica.receive(connection, len(bare_replica.ACK))
    return perf_counter() - began
