"""What a node of a cluster is beside a node that is alone, put together: registration, replicas, peers, controller.

Its logs are opened before the node is registered (``open_logs``). It joins the cluster once clients can reach the node
(``join``), hands over what it leads before it stops (``hand_over``), and leaves (``close``). What the registration says
reaches the replicas first: a lease that is over ends every leadership before anything else is answered.
"""

from __future__ import annotations

import asyncio
import zlib
from collections.abc import Awaitable, Callable
from functools import partial
from typing import Any, Final

from coordinator.config import Settings
from coordinator.controller.internal_topics import InternalTopics
from coordinator.controller.runner import Controller, ControllerConfig
from coordinator.controller.topics import ClusterTopics
from coordinator.filesystem.executor import Disk
from coordinator.log.partition import PartitionLog
from coordinator.log_output import get_logger
from coordinator.logs.log_manager import LogManager
from coordinator.metadata.catalog import Catalog
from coordinator.metadata.keys import node_key
from coordinator.metadata.store import MetadataStore
from coordinator.nodes.identity import NodeIdentity
from coordinator.nodes.inventory import Inventory
from coordinator.nodes.registration import ABANDON_S, Announced, Registration
from coordinator.replication.fetcher import Fetchers
from coordinator.replication.replica_logs import ReplicaLogs
from coordinator.replication.replicas import Replicas
from coordinator.replication.serving import ReplicaServing
from coordinator.replication.throttle import Throttle
from coordinator.runtime.cluster import Cluster
from coordinator.runtime.runtime import CoordinatorRuntime
from coordinator.server.node import Node
from coordinator.server.peers.client import Peers
from coordinator.server.peers.listener import PeerListener, peer_handlers
from coordinator.server.peers.replica_ends import ReplicaEnds

log = get_logger()

_CLOSE_S: Final = 1.0
_OF_CONTROLLER: Final = "controller"
"""What the controller's connections are for: a refused one says that a node's process is gone."""
_EVERYWHERE: Final = frozenset({"0.0.0.0", "::"})
"""Addresses that say of no host which it is."""


class ClusterMember:
    """See the module text. ``fail`` ends the daemon with a reason."""

    def __init__(
        self,
        settings: Settings,
        store: MetadataStore,
        catalog: Catalog,
        logs: LogManager,
        disk: Disk,
        identity: NodeIdentity,
        wall_ms: Callable[[], int],
        boot_ms: Callable[[], int],
        fail: Callable[[str], None],
    ) -> None:
        self._settings = settings
        self._store = store
        self._catalog = catalog
        self._logs = logs
        self._disk = disk
        self._identity = identity
        self._wall_ms = wall_ms
        self._fail = fail
        self.registration = Registration(
            store,
            identity,
            settings.node_id,
            session_ms=settings.node_session_ms,
            boot_ms=boot_ms,
            wall_ms=wall_ms,
            on_fatal=fail,
            serve_without_quorum=settings.serve_without_quorum == "yes",
        )
        self.topics = ClusterTopics(store, catalog, lease_id=lambda: self.registration.lease_id)
        self.peers = Peers(catalog, self.registration, store.cluster_id)
        self.replica_ends = ReplicaEnds(catalog, logs, self.peers)
        self.coordinators = Cluster(self.registration, self.peers, store.catch_up, self._readable)
        self._controller = Controller(
            store,
            catalog,
            self.registration,
            ControllerConfig(leader_rebalance=settings.leader_rebalance == "yes"),
            connect=lambda node: self.peers.connect(node, _OF_CONTROLLER),
        )
        self._internal_topics = InternalTopics(self.topics, catalog)
        self._replicas: Replicas | None = None
        self._fetchers: Fetchers | None = None
        self._listener: PeerListener | None = None

    @property
    def replicas(self) -> Replicas:
        """The replicas of this node; ``open_logs`` comes first."""
        assert self._replicas is not None, "open_logs comes first"
        return self._replicas

    @property
    def registered_start(self) -> str:
        """The start of this node that was registered last, "" without one."""
        known = self._store.get(node_key(self._settings.node_id))
        return "" if known is None else str(known.value["start"])

    async def open_logs(self) -> bool:
        """Opens the logs of this node's replicas; returns whether something of what was on disk is gone. Raises ``OSError``
        and ``MetadataDamagedError``."""
        inventory = await Inventory.read(self._disk)
        self._replicas = Replicas(
            self._catalog,
            self._store,
            self._disk,
            ReplicaLogs(self._disk, self._logs, inventory, self._identity.not_clean),
            replica_lag_time_max_ms=self._settings.replica_lag_time_max_ms,
            wall_ms=self._wall_ms,
            deletion_done=self.topics.deletion_done,
            on_fatal=self._fail,
        )
        return await self._replicas.open()

    async def join(self, node: Node, address: tuple[str, int], kafka_address: tuple[str, int] | None = None) -> None:
        """Takes part in the cluster: other nodes and clients find this one from now on. ``address`` is where clients do,
        ``kafka_address`` where Kafka's clients do.

        Raises ``OSError`` when the port for nodes cannot be had, ``RegistrationRefusedError``,
        ``MetadataUnavailableError``, ``WriteInDoubtError``.
        """
        peer_address = await self._listen(node)
        replicas, registration, settings = self.replicas, self.registration, self._settings
        for runtime in (node.groups, node.transactions):
            replicas.on_role(partial(_take_role, runtime))
        self._fetchers = Fetchers(
            replicas,
            self.peers,
            Throttle(settings.replication_throttle_bytes_per_s, asyncio.get_running_loop().time()),
            max_bytes=settings.replica_fetch_max_bytes,
            wait_max_ms=settings.replica_fetch_wait_max_ms,
        )
        registration.on_lost(replicas.lost)
        registration.on_invalid(replicas.suspend)
        registration.on_valid(replicas.resume)
        registration.on_registered(replicas.become)
        await registration.register(self._announced(address, peer_address, kafka_address))
        self._controller.start()
        self._internal_topics.start()

    async def hand_over(self, timeout_s: float) -> None:
        """Others lead what this node leads, as far as they can within ``timeout_s``."""
        moved = asyncio.Event()
        stops = self._catalog.on_partitions(lambda _: moved.set()), self._catalog.on_nodes(moved.set)
        try:
            async with asyncio.timeout(timeout_s):
                await self.registration.draining()
                while self._may_be_led_elsewhere():
                    moved.clear()
                    await moved.wait()
        except TimeoutError:
            led = sum(1 for _ in self._catalog.led_by(self._settings.node_id))
            log.warning("leaderships_not_handed_over", partitions=led, timeout_s=timeout_s)
        finally:
            for stop in stops:
                stop()

    async def close(self) -> None:
        """Leaves the cluster, if that is not done: nothing is asked or answered any more, and the lease goes last."""
        if self._listener is not None:
            await _in_any_case(self._listener.close(_CLOSE_S))
        await _in_any_case(self._internal_topics.close())
        await _in_any_case(self._controller.close())
        if self._fetchers is not None:
            await _in_any_case(self._fetchers.close())
        self.peers.close()
        if self._replicas is not None:
            await _in_any_case(self._replicas.close())
        await _in_any_case(self.registration.close())

    async def abandon(self) -> None:
        """Gives the lease back, if that takes no longer than a moment: the node ends for an error."""
        await self.registration.close(ABANDON_S)

    def abort(self) -> None:
        """Nothing is answered any more."""
        if self._listener is not None:
            self._listener.abort()

    async def _listen(self, node: Node) -> tuple[str, int]:
        settings = self._settings
        serving = ReplicaServing(
            self.replicas, max_bytes=settings.replica_fetch_max_bytes, max_wait_ms=settings.replica_fetch_wait_max_ms
        )
        self._listener = listener = PeerListener(
            serving,
            peer_handlers(node),
            self.registration,
            self._catalog,
            self._store.cluster_id,
            frame_timeout_ms=settings.frame_timeout_ms,
            max_idle_ms=settings.max_idle_ms,
        )
        return await listener.start(settings.peer_host or settings.host, settings.peer_port)

    def _announced(
        self, address: tuple[str, int], peer_address: tuple[str, int], kafka_address: tuple[str, int] | None
    ) -> Announced:
        settings = self._settings
        host = settings.advertised_host or address[0]
        peer_host = host if peer_address[0] in _EVERYWHERE else peer_address[0]
        defaults = zlib.crc32(repr(sorted(settings.topic_defaults.items())).encode())
        port = settings.advertised_port or address[1]
        announced = Announced(
            host,
            port,
            peer_host,
            peer_address[1],
            settings.rack,
            f"{defaults:08x}",
            room=settings.max_partitions,
        )
        if kafka_address is None:
            return announced
        kafka_host, kafka_port = settings.told_to_kafka(kafka_address)
        return announced._replace(kafka_host=kafka_host, kafka_port=kafka_port)

    def _readable(self, topic: str, index: int, leader_epoch: int, why_not: str) -> None:
        """A coordinator has read its log, or cannot."""
        replica = None if self._replicas is None else self._replicas.get(topic, index)
        if replica is not None:
            replica.readable(leader_epoch, why_not)

    def _may_be_led_elsewhere(self) -> bool:
        """Whether this node leads what another could lead in its place."""
        me, live = self._settings.node_id, self._catalog.live
        for topic, index in self._catalog.led_by(me):
            isr = topic.partitions[index].isr
            if any(node != me and node in live and live[node].accepting for node in isr):
                return True
        return False


def _take_role(
    runtime: CoordinatorRuntime[Any], topic: str, index: int, partition_log: PartitionLog | None, leader_epoch: int
) -> None:
    """A coordinator follows the leadership of its partitions."""
    if topic == runtime.topic and partition_log is not None:
        runtime.lead(index, partition_log, leader_epoch)
    elif topic == runtime.topic:
        runtime.resign(index)


async def _in_any_case(closing: Awaitable[None]) -> None:
    """A part that does not close well must not keep the others from being closed."""
    try:
        await closing
    except Exception:
        log.exception("part_not_closed")
