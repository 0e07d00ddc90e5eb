"""What three replicas cost: an acknowledgement of all, records in bulk, and a replica that catches up.

An acknowledgement is compared with two floors. Bare processes show what bytes and syncs take. Bare event loops show what of
that which is above is the price of the hops between loops and threads; the rest is the daemons' and the producer's work, of
which the processor time of each process tells.

In bulk a megabyte takes the daemons more processor time than bare processes, as each of them decodes and checks what it
stores. Where they and the producer share two processors, these bound the rate more than the disk does.
"""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import AsyncExitStack
from functools import partial
from pathlib import Path
from statistics import median, quantiles
from time import perf_counter, process_time
from typing import Final

from client.admin import Admin
from client.bench import asyncio_replica, bare_replica
from client.bench.figures import Figure, Setting
from client.bench.records import values
from client.cli.cluster_processes import ClusterProcess
from client.cli.failure import CommandError
from client.cli.processes import ServerProcess
from client.errors import CohortError, TopicAlreadyExistsError
from client.producer.producer import Producer

ONE: Final = "one"
ALONE: Final = "alone"
MANY: Final = "many"
NODES: Final = 3
PARTITIONS: Final = 12
OPTIONS: Final = ("--log-level", "error", "--default-replication-factor", "3", "--node-session-ms", "2000")
_PLACES: Final = ((49, "p50"), (98, "p99"))
_WHO: Final = ("leader", "follower", "other_follower", "producer")
_BARE_MODULE: Final = bare_replica.__name__
_LOOPS_MODULE: Final = asyncio_replica.__name__
_VALUE: Final = 1024
_BULK_RECORDS: Final = 20_000
_FRAME: Final = 1024 * 1024
_AHEAD: Final = 4
_READY_S: Final = 60.0
_CAUGHT_UP_S: Final = 300.0
_BARE: Final = "three bare processes: frame, write, fdatasync, followers before the leader's sync"
_BARE_ALONE: Final = "a bare process: frame, write, fdatasync"
_LOOPS: Final = "three bare event loops with a thread each: the hops of a record, and nothing else in them"
_DAEMONS: Final = "all three daemons together, without the producer"
_BARE_COPY: Final = "two bare processes: socket, write, fdatasync every MiB"


async def run(setting: Setting) -> AsyncIterator[Figure]:
    """Cohort and floor take turns; the medians of the rounds count."""
    rounds, count = (1, 60) if setting.quick else (3, 2_000)
    megabytes = 2 if setting.quick else 100
    content = values(megabytes * 1_000_000 // _VALUE, _VALUE)
    all_three, alone, loops = _Latencies(), _Latencies(), _Latencies()
    bare, bare_alone = _Latencies(), _Latencies()
    bulk, bare_bulk = _Bulk(), _Bulk()
    async with ClusterProcess(setting.directory, NODES, *OPTIONS) as cluster:
        await create(cluster.address, {ONE: 1, MANY: PARTITIONS})
        await create(cluster.address, {ALONE: 1}, replicas=1)
        daemons = await _leader_first(cluster)
        async with Producer(bootstrap_servers=cluster.address) as producer:
            await producer.send_many(MANY, content[:1000])
            for _ in range(rounds):
                await all_three.add(lambda: _one_by_one(producer, ONE, count), daemons)
                await bare.add_bare(setting.directory, _BARE_MODULE, 2, count)
                await loops.add_bare(setting.directory, _LOOPS_MODULE, 2, count)
                await alone.add(lambda: _one_by_one(producer, ALONE, count), [])
                await bare_alone.add_bare(setting.directory, _BARE_MODULE, 0, count)
                await bulk.add(megabytes, lambda: _in_bulk(producer, content), daemons)
                await bare_bulk.add_bare(megabytes, setting.directory, followers=2)
            params = {"value_bytes": _VALUE, "replicas": NODES, "acks": "all", "rounds": rounds}
            counted = {**params, "records": count}
            for figure in _latencies(all_three, loops, bare, counted):
                yield figure
            for place, name in _PLACES:
                took, floor = alone.at(place), bare_alone.at(place)
                yield Figure(
                    "replication", f"one_replica_{name}_ms", took, "ms", floor, _BARE_ALONE, {**counted, "replicas": 1}
                )
            params = {**params, "partitions": PARTITIONS, "records": len(content)}
            rate, floor = bulk.rate(), bare_bulk.rate()
            yield Figure("replication", "send_many_mb_per_s", rate, "MB/s", floor, _BARE, params)
            cpu, floor = bulk.cpu_ms(), bare_bulk.cpu_ms()
            yield Figure("replication", "send_many_cpu_ms_per_mb", cpu, "ms", floor, _BARE, {**params, "of": _DAEMONS})
            copied = await _caught_up(cluster, producer, content)
    bare_copy = _Bulk()
    await bare_copy.add_bare(megabytes, setting.directory, followers=0)
    params = {"value_bytes": _VALUE, "partitions": PARTITIONS, "megabytes": megabytes}
    yield Figure("replication", "catch_up_mb_per_s", megabytes / copied, "MB/s", bare_copy.rate(), _BARE_COPY, params)


async def create(address: str, topics: dict[str, int], replicas: int = -1) -> None:
    """Makes topics as soon as there are nodes enough, and waits until all of their replicas are in sync."""
    async with asyncio.timeout(_READY_S), Admin(bootstrap_servers=address) as admin:
        for topic, partitions in topics.items():
            while True:
                try:
                    await admin.create_topics({topic: partitions}, replication_factor=replicas)
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


class _Latencies:
    """Milliseconds of records one by one, and the processor time of processes that serve them, in several rounds."""

    def __init__(self) -> None:
        self._rounds: list[list[float]] = []
        self._cpu_us: list[list[float]] = []

    async def add(self, measure: Callable[[], Awaitable[list[float]]], processes: Sequence[ServerProcess]) -> None:
        """One round; this process counts behind ``processes``."""
        before = [*(each.cpu_s() for each in processes), process_time()]
        taken = await measure()
        after = [*(each.cpu_s() for each in processes), process_time()]
        self._rounds.append(taken)
        self._cpu_us.append([(end - start) / len(taken) * 1e6 for start, end in zip(before, after, strict=True)])

    async def add_bare(self, directory: Path, module: str, followers: int, count: int) -> None:
        """One round of bare processes, the leader first."""
        async with AsyncExitStack() as stack:
            processes, connection = await _bare(stack, directory, module, followers)
            await self.add(lambda: asyncio.to_thread(_acknowledged_one_by_one, connection, count), processes)

    def at(self, place: int) -> float:
        """The median over the rounds of what ``place`` percent and one took at most."""
        return median(quantiles(each, n=100)[place] for each in self._rounds)

    def cpu_us(self, process: int) -> float:
        """Microseconds of a process a record."""
        return median(each[process] for each in self._cpu_us)


class _Bulk:
    """Megabytes a second, and the processor time of the processes that serve them, in several rounds."""

    def __init__(self) -> None:
        self._rates: list[float] = []
        self._cpu_ms: list[float] = []

    async def add(
        self, megabytes: float, measure: Callable[[], Awaitable[float]], processes: Sequence[ServerProcess]
    ) -> None:
        """One round; ``measure`` returns the seconds that it took."""
        before = sum(each.cpu_s() for each in processes)
        self._rates.append(megabytes / await measure())
        self._cpu_ms.append((sum(each.cpu_s() for each in processes) - before) * 1000 / megabytes)

    async def add_bare(self, megabytes: int, directory: Path, followers: int) -> None:
        """One round of bare processes, with as many whole frames."""
        frames = max(1, megabytes * 1_000_000 // _FRAME)
        async with AsyncExitStack() as stack:
            processes, connection = await _bare(stack, directory, _BARE_MODULE, followers)
            measure = partial(asyncio.to_thread, _acknowledged_in_bulk, connection, frames)
            await self.add(frames * _FRAME / 1e6, measure, processes)

    def rate(self) -> float:
        """Megabytes a second."""
        return median(self._rates)

    def cpu_ms(self) -> float:
        """Milliseconds of all processes a megabyte."""
        return median(self._cpu_ms)


async def _leader_first(cluster: ClusterProcess) -> list[ServerProcess]:
    async with Admin(bootstrap_servers=cluster.address) as admin:
        leader = (await admin.describe_topics(ONE))[ONE].partitions[0].leader
    return [cluster[node] for node in sorted(cluster.running, key=lambda node: node != leader)]


def _latencies(all_three: _Latencies, loops: _Latencies, bare: _Latencies, params: dict[str, object]) -> list[Figure]:
    """An acknowledgement of all, the hops of it, and the processor time of who takes part."""
    figures = []
    for place, name in _PLACES:
        floor = bare.at(place)
        figures.append(Figure("replication", f"acks_all_{name}_ms", all_three.at(place), "ms", floor, _BARE, params))
        figures.append(
            Figure(
                "replication", f"event_loops_{name}_ms", loops.at(place), "ms", floor, _BARE, {**params, "of": _LOOPS}
            )
        )
    for process, who in enumerate(_WHO):
        took, floor = all_three.cpu_us(process), loops.cpu_us(process)
        figures.append(
            Figure("replication", f"{who}_cpu_us", took, "us", floor or None, _LOOPS if floor else None, params)
        )
    return figures


async def _one_by_one(producer: Producer, topic: str, count: int) -> list[float]:
    content = b"v" * _VALUE
    taken = []
    for _ in range(count):
        began = perf_counter()
        await producer.send_and_wait(topic, content)
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


async def _bare(
    stack: AsyncExitStack, directory: Path, program: str, followers: int
) -> tuple[list[ServerProcess], socket.socket]:
    """The processes, the leader first, and a connection to it."""
    own = directory / f"bare-{perf_counter()}"
    own.mkdir()
    module = ("-m", program)
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
    return [leader, *running], connection


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
