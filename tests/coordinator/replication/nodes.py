"""Nodes on one loop, with real files, sockets and replicas, and one metadata in memory. Tests say who leads."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path
from typing import Any

from coordinator.config import Settings
from coordinator.filesystem.executor import Disk
from coordinator.filesystem.files import FileStorage
from coordinator.logs.log_manager import LogManager
from coordinator.metadata.authority import Put
from coordinator.metadata.catalog import Catalog
from coordinator.metadata.keys import encode_partition, live_key, partition_key, topic_key
from coordinator.metadata.memory import SharedMemory
from coordinator.metadata.store import Lease
from coordinator.nodes.inventory import Inventory
from coordinator.replication.fetcher import Fetchers
from coordinator.replication.partition import Incarnation, PartitionRegistration
from coordinator.replication.replica import Replica
from coordinator.replication.replica_logs import ReplicaLogs
from coordinator.replication.replicas import Replicas
from coordinator.replication.serving import ReplicaServing
from coordinator.replication.throttle import Throttle
from coordinator.server.peers.client import Peers
from coordinator.server.peers.listener import PeerListener
from protocol.record_batch import encode_batch, fingerprint, iter_batches, read_header
from tests.coordinator.server.peers.nodes import CLUSTER, Member

TOPIC_ID = "id-of-t"
WALL_MS = 1_700_000_000_000


class ReplicaNode:
    """A node with everything that replication needs."""

    def __init__(self, node: int, path: Path, metadata: SharedMemory, **options: Any) -> None:
        self.settings = Settings(**options)
        self.failed: list[str] = []
        self.store = metadata.open()
        self.member = Member(Incarnation(node, -1))
        self.catalog = Catalog(
            self.store,
            node,
            lambda: "unused",
            max_partitions=1_000,
            max_partitions_per_topic=1_000,
            config_defaults=self.settings.topic_defaults,
            cluster=True,
        )
        self.disk = Disk(FileStorage(path / f"node-{node}"))
        self.logs = LogManager(
            self.disk,
            self.catalog,
            lambda topic: self.catalog.config(topic).log_config(self.settings.flush),
            self.failed.append,
            serves_all=False,
        )
        self.lease: Lease | None = None
        self.replicas: Replicas
        self.peers: Peers
        self.fetchers: Fetchers
        self.listener: PeerListener
        self.address = ("", 0)

    async def start(self) -> None:
        """Opens what is there, listens, and registers."""
        settings = self.settings
        self.replicas = Replicas(
            self.catalog,
            self.store,
            self.disk,
            ReplicaLogs(self.disk, self.logs, await Inventory.read(self.disk), self._not_clean),
            replica_lag_time_max_ms=settings.replica_lag_time_max_ms,
            wall_ms=lambda: WALL_MS,
            deletion_done=self._deletion_done,
            on_fatal=self.failed.append,
        )
        await self.replicas.open()
        self.peers = Peers(self.catalog, self.member, CLUSTER)
        await self.fetch_anew()
        await self.listen(0)
        await self.register()

    async def _not_clean(self) -> None:
        """What these nodes lose is not judged."""

    async def fetch_anew(self) -> None:
        """Follows what it is to follow, from now on."""
        settings = self.settings
        self.fetchers = Fetchers(
            self.replicas,
            self.peers,
            Throttle(settings.replication_throttle_bytes_per_s, asyncio.get_running_loop().time()),
            max_bytes=settings.replica_fetch_max_bytes,
            wait_max_ms=settings.replica_fetch_wait_max_ms,
        )
        for node in self.catalog.nodes:
            self.replicas.asks(node)

    async def listen(self, port: int) -> None:
        """Takes connections of other nodes."""
        serving = ReplicaServing(
            self.replicas,
            max_bytes=self.settings.replica_fetch_max_bytes,
            max_wait_ms=self.settings.replica_fetch_wait_max_ms,
        )
        self.listener = PeerListener(
            serving, {}, self.member, self.catalog, CLUSTER, frame_timeout_ms=10_000, max_idle_ms=60_000
        )
        self.address = await self.listener.start("127.0.0.1", port)

    async def register(self) -> None:
        """Registers, perhaps anew."""
        if self.lease is not None:
            await self.lease.revoke()
            self.replicas.lost()
        self.lease = await self.store.grant(3_600_000)
        node, (host, port) = self.member.me.node, self.address
        value = {"host": "", "port": 0, "peer_host": host, "peer_port": port, "rack": "", "clean_since": 0}
        await self.store.transaction([], [Put(live_key(node), value, self.lease.id)])
        known = self.store.get(live_key(node))
        assert known is not None
        self.member.me = Incarnation(node, known.create_revision)
        self.replicas.become(self.member.me)

    async def stop(self) -> None:
        """Ends everything, in order."""
        await self.fetchers.close()
        self.peers.close()
        await self.listener.close(1)
        await self.replicas.close()
        await self.logs.close()
        await self.store.close()
        self.disk.close()
        assert not self.failed

    async def _deletion_done(self, topic_ids: Sequence[str], node: int) -> None:
        assert not topic_ids, f"node {node} removes {topic_ids}"

    def replica(self, index: int = 0) -> Replica:
        """Its replica of a partition."""
        return self.replicas.by_id[TOPIC_ID, index]

    def end(self, index: int = 0) -> int:
        """How far the log of a partition is on disk; -1 while there is none."""
        replica = self.replicas.by_id.get((TOPIC_ID, index))
        return -1 if replica is None or replica.log is None else replica.log.flushed_offset

    def committed(self, index: int = 0) -> int:
        """The high watermark of a partition; -1 while there is no log."""
        replica = self.replicas.by_id.get((TOPIC_ID, index))
        return -1 if replica is None or replica.log is None else replica.log.high_watermark

    def isr(self, index: int = 0) -> Mapping[int, int]:
        """The in-sync replicas of a partition, with the broker epochs of their joining."""
        registration = self.replica(index).registration
        return {} if registration is None else registration.isr

    def append(self, *values: bytes, index: int = 0) -> int:
        """Appends a batch; the offset behind it."""
        opened = self.replica(index).log
        assert opened is not None
        batch = encode_batch(list(values), timestamps_ms=[WALL_MS] * len(values))
        opened.append(batch, read_header(batch))
        return opened.end_offset

    async def batches(self, index: int = 0) -> list[bytes]:
        """Fingerprints of all that is in its log."""
        opened = self.replica(index).log
        assert opened is not None
        records = b""
        while (offset := _end_of(records)) < opened.end_offset:
            records += await opened.read(offset, 1 << 20, end_offset=opened.end_offset)
        return [fingerprint(records[at : at + header.length]) for at, header in iter_batches(records)]


def _end_of(records: bytes) -> int:
    end = 0
    for _, header in iter_batches(records):
        end = header.next_offset
    return end


class ReplicaCluster:
    """Nodes with one topic, ``t``."""

    def __init__(self, path: Path, metadata: SharedMemory, options: Mapping[str, Any]) -> None:
        self._path = path
        self._metadata = metadata
        self._options = options
        self.nodes: dict[int, ReplicaNode] = {}
        self.store = metadata.open()

    async def start(self, *nodes: int, **options: Any) -> None:
        """Starts nodes."""
        for node in nodes:
            (self._path / f"node-{node}").mkdir(exist_ok=True)
            self.nodes[node] = ReplicaNode(node, self._path, self._metadata, **{**self._options, **options})
            await self.nodes[node].start()

    async def lead(self, leader: int, *replicas: int, partitions: int = 1, isr: tuple[int, ...] | None = None) -> None:
        """Makes the topic, or elects another leader for all of its partitions; returns when it leads."""
        me = {node: self.nodes[node].member.me for node in self.nodes}
        for index in range(partitions):
            known = self.store.get(partition_key(TOPIC_ID, index))
            epoch = 0 if known is None else known.value["leader_epoch"] + 1
            members = replicas if isr is None else isr
            joined = {node: me[node].broker_epoch for node in members}
            registration = PartitionRegistration(replicas, me[leader], epoch, joined, 1)
            await self.store.transaction([], [Put(partition_key(TOPIC_ID, index), encode_partition(registration))])
        await self.store.transaction([], [Put(topic_key("t"), {"id": TOPIC_ID, "config": {}})])
        for index in range(partitions):
            await until(partial(self._is_led, leader, replicas, index, epoch))

    def _is_led(self, leader: int, replicas: tuple[int, ...], index: int, epoch: int) -> bool:
        here = all((TOPIC_ID, index) in self.nodes[node].replicas.by_id for node in replicas if node in self.nodes)
        if not here:
            return False
        replica = self.nodes[leader].replica(index)
        return replica.serves and replica.leader_epoch == epoch

    async def stop(self) -> None:
        """Stops all nodes."""
        for node in self.nodes.values():
            await node.stop()

    async def agree(self, *nodes: int, index: int = 0) -> None:
        """Returns when the logs of these nodes are the same, committed to the end; fails after a while."""
        found = [self.nodes[node] for node in nodes]
        (opened,) = (node.replica(index).log for node in found if node.replica(index).serves)
        assert opened is not None
        await until(lambda: all(node.end(index) == node.committed(index) == opened.end_offset for node in found))
        first = await found[0].batches(index)
        for node in found[1:]:
            assert await node.batches(index) == first


@asynccontextmanager
async def replica_cluster(path: Path, *nodes: int, **options: Any) -> AsyncIterator[ReplicaCluster]:
    """A cluster of these nodes."""
    async with SharedMemory(CLUSTER) as metadata:
        cluster = ReplicaCluster(path, metadata, options)
        await cluster.start(*nodes)
        try:
            yield cluster
        finally:
            await cluster.stop()


async def until(holds: Any, timeout_s: float = 20) -> None:
    """Returns once ``holds()``."""
    async with asyncio.timeout(timeout_s):
        while not holds():
            await asyncio.sleep(0.002)
