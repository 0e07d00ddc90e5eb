"""Several nodes of a test on one loop: their logs, groups and transactions, and the ports by which they ask each other.

Each partition has one copy. When it is to be led elsewhere, ``elect`` copies the log and writes the metadata; each node
follows what the metadata says as its replicas would.
"""

from __future__ import annotations

import asyncio
import shutil
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from itertools import count
from pathlib import Path

from coordinator.config import Settings
from coordinator.controller.administration import Administration
from coordinator.filesystem.executor import Disk
from coordinator.filesystem.files import FileStorage
from coordinator.log.config import LogConfig
from coordinator.log.directories import make_logs
from coordinator.log.partition import PartitionLog
from coordinator.logs.log_manager import LogManager, directory_of
from coordinator.metadata.authority import Operation, Put
from coordinator.metadata.catalog import OFFSETS_TOPIC, TRANSACTIONS_TOPIC, Catalog
from coordinator.metadata.keys import encode_state, live_key, partition_key, topic_key
from coordinator.metadata.memory import SharedMemory, SharedMemoryStore
from coordinator.metadata.partitions import NO_LEADER, PartitionState
from coordinator.metadata.producer_ids import ProducerIds
from coordinator.replication.partition import Incarnation
from coordinator.runtime.cluster import Cluster
from coordinator.server.dispatch import Tasks
from coordinator.server.node import Node as ServerNode
from coordinator.server.peers.client import Peers
from coordinator.server.peers.listener import PeerListener, peer_handlers
from coordinator.transactions.config import TransactionConfig
from protocol.hashing import (
    GROUP_PARTITIONS,
    TRANSACTION_PARTITIONS,
    partition_for_group,
    partition_for_transactional_id,
)
from tests.coordinator.logs.test_log_manager import Node
from tests.coordinator.server.peers.nodes import CLUSTER, Member, NoReplicas
from tests.coordinator.transaction_node import WALL_MS, TransactionNode

GROUP_PARTITION = partition_for_group("g")
TRANSACTION_PARTITION = partition_for_transactional_id("t")


class Opened(Node):
    """The catalog and the logs of a node in a cluster."""

    def __init__(self, disk: Disk, catalog: Catalog) -> None:
        self.catalog, self.fatal, self.disk = catalog, list[str](), disk
        self.partitions = LogManager(disk, catalog, lambda topic: LogConfig(), self.fatal.append, serves_all=False)


class ClusterNode(TransactionNode):
    """One node: leads what the metadata says as soon as it hears of it, and resigns as soon."""

    def __init__(
        self, node_id: int, path: Path, store: SharedMemoryStore, opened: Opened, config: TransactionConfig
    ) -> None:
        self.node_id, self.path, self.store, self.disk = node_id, path, store, opened.disk
        self.member = Member(Incarnation(node_id, 0))
        self.peers = Peers(opened.catalog, self.member, CLUSTER)
        self.ids = count(1_000 * (node_id + 1))
        cluster = Cluster(self.member, self.peers, store.catch_up)
        super().__init__(opened, config, lambda: next(self.ids), cluster)
        self.leading: set[asyncio.Task[None]] = set()
        catalog = self.catalog
        server_node = ServerNode(
            Settings(), store, catalog, self.logs, self.groups, self.transactions,
            ProducerIds(store, lambda: WALL_MS), Tasks(), lambda: WALL_MS, self.member, Administration(store, catalog),
        )  # fmt: skip
        self.server_node = server_node
        serving, asked = NoReplicas().serving(), peer_handlers(server_node)
        self.listener = PeerListener(
            serving, asked, self.member, catalog, CLUSTER, frame_timeout_ms=5_000, max_idle_ms=60_000
        )

    async def start(self) -> None:
        host, port = await self.listener.start("127.0.0.1", 0)
        clients = {"host": "client-host", "port": 9000 + self.node_id}
        live = {**clients, "peer_host": host, "peer_port": port, "rack": "", "clean_since": 0}
        revision = await self.store.transaction([], [Put(live_key(self.node_id), live)])
        assert revision is not None
        self.member.me = Incarnation(self.node_id, revision)
        self.catalog.on_partitions(self._follow)
        await self.groups.start()
        await self.transactions.start()

    def _follow(self, partitions: Sequence[tuple[str, int]]) -> None:
        for topic_id, index in partitions:
            topic = self.catalog.with_id(topic_id)
            if topic is None:
                continue
            state = topic.partitions[index]
            self._tell(topic.name, index, None, 0)
            if state.registration.leads(self.member.me):
                task = asyncio.create_task(self._lead(topic.name, index, state.leader_epoch))
                self.leading.add(task)
                task.add_done_callback(self.leading.discard)

    async def _lead(self, name: str, index: int, leader_epoch: int) -> None:
        log = self.logs.logs.get((name, index))
        if log is None:
            directory = directory_of(name, index)
            if not (self.path / directory).exists():
                make_logs(self.disk.storage, [directory])
            log = await PartitionLog.open(self.disk, directory, LogConfig(), leader_epoch=None, on_fatal=self.fail)
            self.logs.logs[name, index] = log
        await log.begin_epoch(leader_epoch)
        if self.catalog.topics[name].partitions[index].leader_epoch == leader_epoch:
            self._tell(name, index, log, leader_epoch)

    def _tell(self, name: str, index: int, log: PartitionLog | None, leader_epoch: int) -> None:
        """As the replicas of a node do."""
        if log is None:
            self.logs.led.pop((name, index), None)
        else:
            self.logs.led[name, index] = log
        for runtime in (self.groups, self.transactions):
            if runtime.topic == name and log is not None:
                runtime.lead(index, log, leader_epoch)
            elif runtime.topic == name:
                runtime.resign(index)

    def fail(self, reason: str) -> None:
        raise AssertionError(reason)

    async def give_up(self, name: str, index: int) -> None:
        """Closes a log that another node is to have."""
        log = self.logs.logs.pop((name, index), None)
        self.logs.led.pop((name, index), None)
        if log is not None:
            await log.close()

    async def stop(self) -> None:
        await self.transactions.close()
        await self.groups.close()
        self.peers.close()
        await self.listener.close(0.1)
        await asyncio.gather(*self.leading)
        for log in tuple(self.logs.logs.values()):
            await log.close()
        self.timers.close()
        self.disk.close()

    async def init(self, transactional_id: str = "t", timeout_ms: int = 60_000) -> tuple[int, int]:
        await self.until(lambda: self.transactions.shard(transactional_id) is not None)
        await self.transactions.wait_loaded()
        return await super().init(transactional_id, timeout_ms)


class TransactionCluster:
    """The nodes, and who leads what."""

    def __init__(self, root: Path, shared: SharedMemory, config: TransactionConfig) -> None:
        self.root, self.shared, self.config = root, shared, config
        self.nodes: dict[int, ClusterNode] = {}

    def __getitem__(self, node_id: int) -> ClusterNode:
        return self.nodes[node_id]

    async def start(self, node_id: int) -> ClusterNode:
        path = self.root / f"node-{node_id}"
        path.mkdir()
        disk, store = Disk(FileStorage(path), threads=2), self.shared.open()
        ids = count(1)
        catalog = Catalog(
            store, node_id, lambda: f"n{node_id}-{next(ids)}", max_partitions=1000, max_partitions_per_topic=1000,
            config_defaults=Settings().topic_defaults, cluster=True,
        )  # fmt: skip
        node = self.nodes[node_id] = ClusterNode(node_id, path, store, Opened(disk, catalog), self.config)
        await node.start()
        return node

    async def kill(self, node_id: int) -> None:
        """The node is gone: what it has on disk stays."""
        node = self.nodes.pop(node_id)
        node.store.cut_off()
        await node.stop()

    async def create(self, name: str, leaders: Sequence[int]) -> None:
        """A topic with one partition for each of these leaders."""
        operations: list[Operation] = [
            Put(partition_key(f"id-{name}", index), encode_state(self._led_by(leader, 0)))
            for index, leader in enumerate(leaders)
        ]
        any_node = next(iter(self.nodes.values()))
        await any_node.store.transaction([], [*operations, Put(topic_key(name), {"id": f"id-{name}", "config": {}})])
        await self.settled()

    async def elect(
        self, name: str, index: int, leader: int, *, copied_from: int | None = None, by: int | None = None
    ) -> None:
        """Makes another node, or none, the leader of a partition; it gets the log of the one before. ``by`` is the node that
        writes it."""
        any_node = next(iter(self.nodes.values())) if by is None else self.nodes[by]
        topic = any_node.catalog.topics[name]
        before, directory = topic.partitions[index], directory_of(name, index)
        source = before.leader if copied_from is None else copied_from
        if leader != NO_LEADER and source not in (leader, NO_LEADER):
            if source in self.nodes:
                self.nodes[source].groups.resign(index) if name == OFFSETS_TOPIC else None
                self.nodes[source].transactions.resign(index) if name == TRANSACTIONS_TOPIC else None
                await self.nodes[source].give_up(name, index)
            target = self.root / f"node-{leader}" / directory
            shutil.rmtree(target, ignore_errors=True)
            shutil.copytree(self.root / f"node-{source}" / directory, target)
        state = self._led_by(leader, before.leader_epoch + 1)
        await any_node.store.transaction([], [Put(partition_key(topic.topic_id, index), encode_state(state))])
        await self.settled()

    async def settled(self) -> None:
        """All nodes know the metadata, and lead what it says."""
        await asyncio.sleep(0.001)
        for node in self.nodes.values():
            await asyncio.gather(*node.leading)

    def _led_by(self, leader: int, leader_epoch: int) -> PartitionState:
        broker_epoch = self.nodes[leader].member.me.broker_epoch if leader != NO_LEADER else 0
        replicas = (leader,) if leader != NO_LEADER else (0,)
        return PartitionState(leader, leader_epoch, replicas, replicas, broker_epoch)


@asynccontextmanager
async def transaction_cluster(
    root: Path, nodes: int = 2, config: TransactionConfig | None = None
) -> AsyncIterator[TransactionCluster]:
    """Nodes 0, 1, ... with the internal topics: the last coordinates the group "g", node 0 the transactional id "t"."""
    async with SharedMemory(CLUSTER) as shared:
        cluster = TransactionCluster(root, shared, config or TransactionConfig())
        try:
            for node_id in range(nodes):
                await cluster.start(node_id)
            groups, transactions = [NO_LEADER] * GROUP_PARTITIONS, [NO_LEADER] * TRANSACTION_PARTITIONS
            groups[GROUP_PARTITION], transactions[TRANSACTION_PARTITION] = nodes - 1, 0
            await cluster.create(OFFSETS_TOPIC, groups)
            await cluster.create(TRANSACTIONS_TOPIC, transactions)
            yield cluster
        finally:
            for node in tuple(cluster.nodes.values()):
                await node.stop()
