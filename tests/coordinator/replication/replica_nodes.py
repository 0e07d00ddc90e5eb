"""Nodes with real replicas and logs on real files, which share metadata in memory. Fetches are carried by hand."""

from __future__ import annotations

import asyncio
import errno
import os
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from itertools import count, permutations
from pathlib import Path
from typing import Any, Self

from coordinator.config import Settings
from coordinator.controller.core import PartitionView, decide
from coordinator.filesystem.executor import Disk
from coordinator.log.config import LogConfig
from coordinator.log.partition import PartitionLog
from coordinator.logs.log_manager import LogManager
from coordinator.metadata.authority import Authority, Delete, DeletePrefix, Put
from coordinator.metadata.catalog import Catalog
from coordinator.metadata.keys import (
    deleting_key,
    encode_partition,
    live_key,
    partition_key,
    partitions_prefix,
    topic_key,
)
from coordinator.metadata.memory import MemoryStore
from coordinator.metadata.store import Lease
from coordinator.nodes.inventory import PATH as INVENTORY
from coordinator.nodes.inventory import Inventory
from coordinator.replication.partition import Incarnation, PartitionRegistration
from coordinator.replication.replica import Replica
from coordinator.replication.replica_logs import ReplicaLogs
from coordinator.replication.replicas import Replicas
from tests.coordinator.log.faulty_storage import HookedStorage
from tests.coordinator.log.logs import append_value
from tests.coordinator.metadata.cluster_metadata import live

TOPIC = "letters"
LAG_MS = 1_000


class ReplicaNode:
    """What a daemon has of replication. ``start`` it, ``stop`` or ``kill`` it, and start it again on the same directory."""

    def __init__(self, cluster: ReplicaCluster, node: int, root: Path) -> None:
        self.cluster = cluster
        self.id = node
        self.root = root
        self.up = False
        self.lost = False
        self.noted: list[bool] = []
        """Of each time it was noted that this node is not clean: whether its log was still as it had been found."""
        self.clean_since = 0
        self.disk_is_full = False
        """Whether the disk takes no more records."""
        self.roles: list[tuple[str, int, bool, int]] = []
        """What ``on_role`` told: topic, number, whether it serves, leader epoch."""

    async def _not_clean(self) -> None:
        self.noted.append((self.root / f"{TOPIC}-0").exists())

    async def start(self) -> None:
        self.disk = Disk(HookedStorage(self.root, self._refuse), threads=2)
        self.store = self.cluster.new_store()
        self.catalog = Catalog(
            self.store,
            self.id,
            self.cluster.new_id,
            max_partitions=1000,
            max_partitions_per_topic=1000,
            config_defaults=Settings().topic_defaults,
            cluster=True,
        )
        self.logs = LogManager(
            self.disk, self.catalog, lambda topic: self.cluster.config, self.cluster.fatal.append, serves_all=False
        )
        self.inventory = await Inventory.read(self.disk)
        self.replicas = Replicas(
            self.catalog,
            self.store,
            self.disk,
            ReplicaLogs(self.disk, self.logs, self.inventory, self._not_clean),
            replica_lag_time_max_ms=LAG_MS,
            wall_ms=lambda: self.cluster.wall_ms,
            deletion_done=self._deletion_done,
            on_fatal=self.cluster.fatal.append,
        )
        self.roles.clear()
        self.replicas.on_role(
            lambda topic, index, log, epoch: self.roles.append((topic, index, log is not None, epoch))
        )
        self.lost = await self.replicas.open()
        if self.lost:
            self.clean_since = 0
        await self.register()
        self.up = True

    def _refuse(self, operation: str, path: str) -> None:
        takes_room = (operation == "append" and path.endswith(".log")) or (operation, path) == ("write_file", INVENTORY)
        if self.disk_is_full and takes_room:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), path)

    async def register(self) -> None:
        """Under a new lease, as another incarnation."""
        self.lease: Lease = await self.store.grant(60_000)
        clean_since = self.clean_since
        value = {**live(host=f"host{self.id}", directory=f"dir{self.id}"), "clean_since": clean_since}
        revision = await self.store.transaction([], [Put(live_key(self.id), value, self.lease.id)])
        assert revision is not None
        self.clean_since = clean_since or revision
        await self.cluster.catch_up()
        self.replicas.become(Incarnation(self.id, revision))

    async def stop(self) -> None:
        self.up = False
        await self.replicas.close()
        await self.logs.close()
        await self.lease.revoke()
        self.disk.close()

    async def kill(self) -> None:
        """No byte more reaches the disk; the lease ends later (``self.lease.revoke``)."""
        self.up = False
        for stop in self.replicas._stops:
            stop()
        for task in self.replicas._tasks:
            task.cancel()
        for replica in self.replicas.by_id.values():
            replica.stop()
        for log in self.logs.logs.values():
            await log.discard()
        self.disk.close()

    def replica(self, index: int = 0, topic: str = TOPIC) -> Replica:
        found = self.replicas.get(topic, index)
        assert found is not None
        return found

    def log(self, index: int = 0) -> PartitionLog:
        log = self.replica(index).log
        assert log is not None
        return log

    async def _deletion_done(self, topic_ids: Sequence[str], node: int) -> None:
        for key in map(deleting_key, topic_ids):
            known = self.store.get(key)
            if known is not None:
                left = [one for one in known.value["nodes"] if one != node]
                await self.store.transaction([], [Put(key, {**known.value, "nodes": left}) if left else Delete(key)])


class ReplicaCluster:
    """Nodes, their metadata, and what a controller and a network do for them."""

    def __init__(self, root: Path, nodes: int = 3, config: LogConfig | None = None) -> None:
        self.authority = Authority()
        self.config = config or LogConfig(segment_bytes=2_000, index_interval_bytes=200)
        self.fatal: list[str] = []
        self.wall_ms = 1_000_000
        self.cut: set[tuple[int, int]] = set()
        """Pairs of follower and leader between which nothing is carried."""
        self.given: dict[Replica, int] = {}
        """From which offset each follower was given records last."""
        self._ids = count(1)
        self._stores: list[MemoryStore] = []
        self.nodes = {node: ReplicaNode(self, node, root / f"node{node}") for node in range(1, nodes + 1)}
        self._carrying: asyncio.Task[None] | None = None

    def new_id(self) -> str:
        return f"id{next(self._ids):05}"

    def new_store(self) -> MemoryStore:
        store = MemoryStore(self.authority, "cluster-1", asyncio.get_running_loop().time)
        self._stores.append(store)
        return store

    async def __aenter__(self) -> Self:
        for node in self.nodes.values():
            node.root.mkdir(exist_ok=True)
            await node.start()
        self._carrying = asyncio.create_task(self._carry_all())
        return self

    async def __aexit__(self, *error: object) -> None:
        assert self._carrying is not None
        self._carrying.cancel()
        await asyncio.gather(self._carrying, return_exceptions=True)
        for node in self.nodes.values():
            if node.up:
                await node.stop()
        assert self.fatal == []

    async def catch_up(self) -> None:
        for store in self._stores:
            await store.catch_up()

    # Metadata

    async def create(self, partitions: int = 1, replicas: Sequence[int] = (1, 2, 3), min_isr: int = 2) -> str:
        """Makes the topic; the first of the replicas leads."""
        topic_id, store = self.new_id(), self._stores[0]
        leader = self.nodes[replicas[0]].replicas.me
        isr = {node: self.nodes[node].replicas.me.broker_epoch for node in replicas}
        known = PartitionRegistration(tuple(replicas), leader, 0, isr, min_isr)
        puts = [Put(partition_key(topic_id, index), encode_partition(known)) for index in range(partitions)]
        await store.transaction([], [Put(topic_key(TOPIC), {"id": topic_id, "config": {}}), *puts])
        await self.catch_up()
        here = [self.nodes[node].replica(index) for node in replicas for index in range(partitions)]
        await self.until(lambda: all(replica.log is not None for replica in here), "all have their logs")
        first = self.nodes[replicas[0]]
        await self.until(lambda: all(first.replica(index).serves for index in range(partitions)), "the first leads")
        return topic_id

    async def delete(self, topic_id: str, partitions: int = 1) -> None:
        note = {"name": TOPIC, "partitions": partitions, "nodes": list(self.nodes)}
        await self._stores[0].transaction(
            [], [Delete(topic_key(TOPIC)), DeletePrefix(partitions_prefix(topic_id)), Put(deleting_key(topic_id), note)]
        )
        await self.catch_up()

    def state(self, index: int = 0) -> Any:
        """The partition as the metadata has it."""
        (topic_id,) = [known.value["id"] for known in self.authority.range(topic_key(TOPIC))]
        known = self.authority.get(partition_key(topic_id, index))
        assert known is not None
        return known.value

    async def write(self, registration: PartitionRegistration, index: int = 0) -> None:
        """Writes a partition, whatever it was."""
        (topic_id,) = [known.value["id"] for known in self.authority.range(topic_key(TOPIC))]
        await self._stores[0].transaction([], [Put(partition_key(topic_id, index), encode_partition(registration))])
        await self.catch_up()

    async def control(self) -> None:
        """What a controller would write now, until there is nothing left."""
        await self.catch_up()
        catalog = next(node.catalog for node in self.nodes.values() if node.up)
        for _ in range(10):
            for topic in catalog.topics.values():
                for index, state in enumerate(topic.partitions):
                    target = catalog.reassignment(topic.topic_id, index)
                    update = decide(0, PartitionView(state.registration, state.partition_epoch, target), catalog.live)
                    if update is not None:
                        await self.write(update.registration, index)
            await self.catch_up()

    # Network

    async def _carry_all(self) -> None:
        while True:
            await self.catch_up()
            up = [node for node in self.nodes.values() if node.up]
            for follower, leader in permutations(up, 2):
                if (follower.id, leader.id) in self.cut:
                    continue
                leader.replicas.heard(follower.replicas.me)
                for partition, replica in follower.replicas.followed(leader.id).items():
                    other = leader.replicas.by_id.get(partition)
                    if other is not None:
                        again = (asked := replica.ask()) and self.given.get(replica) == asked.fetch_offset
                        if await carry(replica, other, checks_bodies=bool(again)) and asked is not None:
                            self.given[replica] = asked.fetch_offset
            await asyncio.sleep(0.001)

    async def until(self, holds: Callable[[], bool], what: str = "") -> None:
        try:
            async with asyncio.timeout(20):
                while not holds():
                    await asyncio.sleep(0.002)
        except TimeoutError:
            raise AssertionError(f"never came: {what or holds}") from None


@asynccontextmanager
async def led(
    root: Path, *values: bytes, min_isr: int = 2
) -> AsyncIterator[tuple[ReplicaCluster, ReplicaNode, ReplicaNode, ReplicaNode]]:
    """Three nodes with a topic that the first of them leads; ``values`` are committed there."""
    async with ReplicaCluster(root) as cluster:
        await cluster.create(min_isr=min_isr)
        one, two, three = cluster.nodes.values()
        if values:
            assert await committed(one, *values) is None
        yield cluster, one, two, three


async def carry(follower: Replica, leader: Replica, max_bytes: int = 1 << 20, *, checks_bodies: bool = False) -> bool:
    """One fetch and its answer."""
    request = follower.ask()
    if request is None:
        return False
    answer = leader.acknowledged(request)
    if answer is None:
        records, epochs = await leader.read_for_follower(request.fetch_offset, max_bytes, checks_bodies=checks_bodies)
        if leader.leader is None:
            return False
        answer = leader.leader.answer(request)._replace(records=records, epochs=epochs)
    await follower.take(answer)
    return True


async def committed(node: ReplicaNode, *values: bytes, index: int = 0) -> Exception | None:
    """Appends values at the leader; what a Produce with acks=all would be told."""
    log, future = node.log(index), asyncio.get_running_loop().create_future()
    for value in values:
        append_value(log, value)
    log.when_committed(log.end_offset, future.set_result)
    async with asyncio.timeout(20):
        outcome: Exception | None = await future
    return outcome
