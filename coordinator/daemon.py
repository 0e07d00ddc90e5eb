"""The daemon put together: data directory, metadata, logs, groups, server. Started and stopped in that order and back."""

from __future__ import annotations

import asyncio
import errno
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, replace
from importlib.metadata import version
from typing import TYPE_CHECKING, Any

from coordinator.cluster_member import ClusterMember
from coordinator.config import Settings
from coordinator.controller.administration import Administration
from coordinator.filesystem.executor import Disk
from coordinator.filesystem.files import FileStorage
from coordinator.filesystem.storage import Lock, Storage
from coordinator.group_coordinator import GroupCoordinator
from coordinator.groups.config import GroupConfig
from coordinator.groups.rebalance_history import RebalanceHistory
from coordinator.log.cleaner import Begin
from coordinator.log.compaction_process import local_work
from coordinator.log_output import get_logger
from coordinator.logs.log_manager import LogManager
from coordinator.logs.maintenance import LogMaintenance, MaintenanceCounts
from coordinator.metadata import urls
from coordinator.metadata.catalog import OFFSETS_TOPIC, TRANSACTIONS_TOPIC, Catalog
from coordinator.metadata.etcd.rpc import Access
from coordinator.metadata.import_local import SingleNodeMetadata
from coordinator.metadata.open import open_store
from coordinator.metadata.producer_ids import ProducerIds
from coordinator.metadata.served.server import MetadataServer
from coordinator.metadata.store import MetadataStore
from coordinator.metrics.loop_lag import LoopLag
from coordinator.metrics.sources import Sources
from coordinator.nodes.cleanliness import Cleanliness
from coordinator.nodes.identity import NodeIdentity
from coordinator.nodes.membership import Standalone
from coordinator.nodes.registration import check_format, draw_node_id
from coordinator.runtime.cluster import Cluster
from coordinator.runtime.fair_queue import FairQueue
from coordinator.runtime.timers import CoordinatorTimers
from coordinator.server.call import Handler
from coordinator.server.connection import Port
from coordinator.server.dispatch import Dispatcher, Tasks
from coordinator.server.handlers import handlers
from coordinator.server.listener import ConnectionLimits, Listener, native_port
from coordinator.server.node import Node
from coordinator.server.repeated_heartbeats import RepeatedHeartbeats
from coordinator.server.request_meter import KafkaRequestMeter, RequestMeter
from coordinator.transaction_coordinator import TransactionCoordinator
from coordinator.transactions.config import TransactionConfig
from coordinator.web.health import Readiness
from coordinator.web.port import check_web_extra, web_server
from protocol.hashing import TRANSACTION_PARTITIONS
from protocol.messages import Request

if TYPE_CHECKING:
    from coordinator.web.server import WebServer

log = get_logger()

_LOCK = "lock"
_LOCK_CHECK_S = 1.0


class AddressError(OSError):
    """The daemon cannot listen on the address it was told to. The text says why and what to do."""

    def __init__(self, host: str, port: int, error: OSError | ValueError, options: str = "--host, --port") -> None:
        reason, taken = f"this is no name of a host ({error})", False
        if isinstance(error, OSError):
            reason = (error.strerror or str(error)).rpartition("): ")[2]  # without asyncio's words around it
            taken = error.errno == errno.EADDRINUSE
        advice = "Stop the program that has it, or choose another port" if taken else "Choose another host or port"
        super().__init__(f"cannot listen on {host}:{port}: {reason}. {advice} ({options}; port 0 picks a free one)")


class DaemonFailedError(Exception):
    """The daemon ended because it could not keep its promise, such as after a failed fsync. The text says why."""


@dataclass(frozen=True, slots=True)
class Origins:
    """Where the daemon takes clocks, fresh ids and the machine's start from, so that a simulation can give its own.

    ``boot_id`` is another after each start of the machine: what was in its memory is gone then. ``boot_ms`` are milliseconds
    since that start, those included in which machine or process were suspended.
    """

    wall_ms: Callable[[], int]
    new_id: Callable[[], str]
    boot_id: Callable[[], str]
    boot_ms: Callable[[], int]


OpenMetadata = Callable[[Callable[[], str], Callable[[str], None]], Awaitable[MetadataStore]]
"""Opens a metadata store: gets what draws the id of a new cluster, and what ends the daemon with a reason."""


class Daemon:
    """One node. ``start`` it, wait for ``failed`` or a signal, ``stop`` it.

    ``begin_compaction`` says where compaction does its work: in the threads of this process, or in one of its own
    (``coordinator.log.compaction_process.ProcessPasses``). ``open_metadata`` opens a store that this node shares with
    others, instead of the one that ``settings.metadata`` names. ``metadata_access`` says how etcd is reached.
    """

    def __init__(
        self,
        settings: Settings,
        storage: Storage,
        origins: Origins,
        begin_compaction: Begin = local_work,
        open_metadata: OpenMetadata | None = None,
        metadata_access: Access | None = None,
    ) -> None:
        self._begin_compaction = begin_compaction
        self._open_metadata = open_metadata
        self._metadata_access = metadata_access
        self._is_alone = settings.is_standalone and open_metadata is None
        self.settings = settings
        self.failed: asyncio.Future[str] = asyncio.get_running_loop().create_future()
        self.address = ("", 0)
        self.kafka_address: tuple[str, int] | None = None
        """Where Kafka's clients connect, once it serves; None without a port for them."""
        self._storage = storage
        self._origins = origins
        self._disk = Disk(storage, settings.disk_threads)
        self._tasks = Tasks()
        self._lock: Lock | None = None
        self.cleanliness: Cleanliness | None = None
        """Whether the data directory has all that was acknowledged, as the start has found it."""
        self._identity: NodeIdentity | None = None
        self._metadata: MetadataStore | None = None
        self._metadata_server: MetadataServer | None = None
        self._member: ClusterMember | None = None
        self._partitions: LogManager | None = None
        self._timers = CoordinatorTimers(asyncio.get_running_loop())
        self._groups: GroupCoordinator | None = None
        self._transactions: TransactionCoordinator | None = None
        self._producer_ids: ProducerIds | None = None
        self._listener: Listener | None = None
        self._maintenance: asyncio.Task[None] | None = None
        self._watching: asyncio.Task[None] | None = None
        self._web: WebServer | None = None
        self._loop_lag: LoopLag | None = None
        self._meters: list[RequestMeter] = []
        self.http_address: tuple[str, int] | None = None
        """Where metrics and health are served; None without ``http``."""

    async def start(self) -> None:
        """Takes the data directory, recovers what is in it and serves.

        Raises ``DataDirectoryLockedError`` when another daemon has it, ``MetadataDamagedError`` when it cannot be trusted or
        another version wrote it, ``AddressError`` when an address cannot be had, ``ConfigurationError`` when what Kafka's
        clients need is not installed, ``OSError`` when the disk fails; in a cluster
        ``MetadataUnavailableError`` when the metadata store does not answer, ``RegistrationRefusedError`` when this node
        must not be part of it, ``ExtraMissingError``. Nothing is left running then, and the data directory is free.
        """
        try:
            await self._start()
        except (Exception, asyncio.CancelledError):
            await self._close_http()
            if self._listener is not None:
                await _close_in_any_case(self._listener.close(0.0))
            await _close_in_any_case(self._close_coordinators())
            await self._close_metadata()
            await self._release()
            raise

    async def wait_loaded(self) -> None:
        """Returns once the groups and transactions that were on disk are served; the daemon answers others meanwhile."""
        if self._groups is not None:
            await self._groups.wait_loaded()
        if self._transactions is not None:
            await self._transactions.wait_loaded()

    async def stop(self) -> None:
        """Answers pending requests, waits for what is being written, closes everything. Safe to call twice.

        In a cluster the node hands over what it leads first.
        """
        if self._member is not None and not self.failed.done():
            await _close_in_any_case(self._member.hand_over(self.settings.controlled_shutdown_ms / 1000))
        await self._close_http()
        if self._listener is not None:
            self._listener.stop_accepting()
        for task in (self._maintenance, self._watching):
            if task is not None:
                task.cancel()
                await asyncio.gather(task, return_exceptions=True)
        await self._close_coordinators()
        loop = asyncio.get_running_loop()
        drained_s = loop.time() + self.settings.drain_timeout_ms / 1000  # one bound for requests and their answers
        await self._tasks.close(drained_s - loop.time())
        if self._partitions is not None:
            await self._partitions.flush()
        if self._listener is not None:
            await self._listener.close(max(0.0, drained_s - loop.time()))
        is_kept = self._partitions is None or await self._partitions.flush()
        await self._close_metadata()
        await self._release(is_kept)

    async def leave(self) -> None:
        """After ``failed``, and before the process ends: tries for a moment to let other nodes take over at once."""
        if self._member is not None:
            await _close_in_any_case(self._member.abandon())

    def fail(self, reason: str) -> None:
        """Ends the daemon without another answer: what was promised can no longer be kept (law 3)."""
        if not self.failed.done():
            self.failed.set_result(reason)
        if self._listener is not None:
            self._listener.abort()
        if self._member is not None:
            self._member.abort()
        log.critical("daemon_failed", reason=reason)

    async def _start(self) -> None:
        if self.settings.http:
            check_web_extra()
        self._lock = await self._disk.run(self._storage.lock, _LOCK)
        await self._disk.tend(self._disk.reserve.restore)
        identity = await NodeIdentity.read(self._disk)
        imported = await self._to_import()
        self._metadata = store = await self._opened_metadata(identity, imported)
        check_format(store)
        number = await self._own_number(identity, store, imported)
        settings = self.settings = replace(self.settings, node_id=number)
        if imported is not None:
            imported.check(store, number, settings.metadata)
        identity.check(store.cluster_id, number, "" if self._is_alone else settings.metadata)
        if imported is not None:
            await imported.import_into(store, self._disk, number, settings.metadata)
        catalog = self._catalog(store)
        if self._is_alone:
            await catalog.ensure_internal_topics()
        self._partitions = LogManager(
            self._disk,
            catalog,
            lambda topic: catalog.config(topic).log_config(settings.flush),
            self.fail,
            self._begin_compaction,
            serves_all=self._is_alone,
        )
        if self._is_alone:
            await self._partitions.open_all()
            lost = self._partitions.lacks_records()
        else:
            self._member = ClusterMember(
                settings,
                store,
                catalog,
                self._partitions,
                self._disk,
                identity,
                self._origins.wall_ms,
                self._origins.boot_ms,
                self.fail,
            )
            lost = await self._member.open_logs()
        self.cleanliness = await identity.begin(
            store.cluster_id,
            settings.node_id,
            self._origins.new_id,
            self._origins.boot_id(),
            settings.flush,
            lost=lost,
            registered_start="" if self._member is None else self._member.registered_start,
        )
        self._identity = identity
        await self._take_part(self._node(store, catalog, self._partitions), self._partitions, self._lock)

    async def _take_part(self, node: Node, logs: LogManager, lock: Lock) -> None:
        await self._serve(node)
        maintenance = self._log_maintenance(logs)
        if self.settings.http:  # health is told while the node waits for its registration
            await self._serve_http(node, maintenance.counts)
        if self._member is not None:
            await self._member.join(node, self.address, self.kafka_address)
        self._maintenance = asyncio.create_task(maintenance.run(), name="cohort-log-maintenance")
        self._watching = asyncio.create_task(self._watch_lock(lock), name="cohort-lock")

    def _node(self, store: MetadataStore, catalog: Catalog, logs: LogManager) -> Node:
        cluster = None if self._member is None else self._member.coordinators
        self._producer_ids = producer_ids = ProducerIds(store, self._origins.wall_ms)
        self._groups = self._group_coordinator(catalog, logs, cluster)
        self._transactions = self._transaction_coordinator(catalog, logs, self._groups, producer_ids, cluster)
        return Node(
            self.settings,
            store,
            catalog,
            logs,
            self._groups,
            self._transactions,
            producer_ids,
            self._tasks,
            self._origins.wall_ms,
            Standalone(self.settings.node_id) if self._member is None else self._member.registration,
            Administration(store, catalog, None if self._member is None else self._member.replica_ends),
            None if self._member is None else self._member.topics,
        )

    async def _serve(self, node: Node) -> None:
        settings = self.settings
        limits, handler_of = _connection_limits(settings), handlers(node)
        meter = for_kafka = None
        if settings.http:
            now = asyncio.get_running_loop().time
            meter, for_kafka = RequestMeter("native", now), KafkaRequestMeter("kafka", now)
            self._meters = [meter, for_kafka]
        handle = Dispatcher(handler_of if meter is None else meter.timing(handler_of)).handle
        heartbeats = RepeatedHeartbeats(node.groups, meter)
        port = native_port(handle, limits.max_frame_bytes, meter=meter, heartbeats=heartbeats)
        kafka = None if settings.kafka_port == 0 else _kafka_port(node, handler_of, self._origins.new_id, for_kafka)
        self._listener = Listener(limits, node.groups.close_connection, self._tasks.hurry)
        await node.groups.start()
        await node.transactions.start()  # what it loads ends transactions in logs and groups
        self.address = await _started(self._listener, port, settings.host, settings.port, "--host, --port")
        if kafka is not None:
            host, number = settings.kafka_host or settings.host, max(settings.kafka_port, 0)
            self.kafka_address = await _started(self._listener, kafka, host, number, "--kafka-host, --kafka-port")

    async def _serve_http(self, node: Node, counts: MaintenanceCounts) -> None:
        assert self._listener is not None, "clients are served first"
        self._loop_lag = LoopLag()
        storage = self._storage
        sources = Sources(
            version=version("aiocohort"),
            node_id=node.settings.node_id,
            max_series=node.settings.metrics_max_series,
            catalog=node.catalog,
            logs=node.logs,
            groups=node.groups,
            transactions=node.transactions,
            listener=self._listener,
            meters=self._meters,
            disk=self._disk,
            syncs=storage.syncs if isinstance(storage, FileStorage) else None,
            maintenance=counts,
            loop_lag=self._loop_lag,
            is_clustered=not self._is_alone,
        )
        now_s = asyncio.get_running_loop().time
        readiness = Readiness(node.groups, node.transactions, self._disk, node.membership, self.failed, now_s)
        self._web = web_server(sources, readiness, node)
        host, port = urls.address(node.settings.http)
        try:
            self.http_address = await self._web.start(host, port)
        except OSError as error:
            raise AddressError(host, port, error, "--http") from error

    async def _close_http(self) -> None:
        web, self._web = self._web, None
        if self._loop_lag is not None:
            self._loop_lag.stop()
        if web is not None:
            await _close_in_any_case(web.close())

    async def _to_import(self) -> SingleNodeMetadata | None:
        """What the directory of a single node has that becomes the first of a cluster. Raises ``MetadataDamagedError`` when
        that was not asked for."""
        if self._open_metadata is not None or self.settings.metadata == "local":
            return None
        found = await SingleNodeMetadata.find(self._disk, self.fail)
        if found is not None and self.settings.import_metadata == "no":
            raise found.refusal(self.settings.metadata)
        return found

    async def _opened_metadata(self, identity: NodeIdentity, imported: SingleNodeMetadata | None) -> MetadataStore:
        def new_cluster_id() -> str:
            if imported is not None:
                return imported.cluster_id
            metadata = "" if self.settings.metadata == "local" else self.settings.metadata
            return identity.for_new_metadata(self._origins.new_id(), metadata)

        if self._open_metadata is not None:
            return await self._open_metadata(new_cluster_id, self.fail)
        url, access = self.settings.metadata, self._metadata_access
        store = await open_store(url, self._disk, new_cluster_id, self.fail, access=access)
        if self.settings.serve_metadata:
            host, port = urls.address(self.settings.serve_metadata)
            server = MetadataServer(store, self._origins.new_id)
            try:
                await server.start(host, port, is_reserved=self.settings.workers > 1)  # by the parent of the workers
            except OSError as error:
                raise AddressError(host, port, error, "--serve-metadata") from error
            self._metadata_server = server
        return store

    async def _close_metadata(self) -> None:
        member, self._member = self._member, None
        if member is not None:
            await _close_in_any_case(member.close())
        server, self._metadata_server = self._metadata_server, None
        if server is not None:
            await _close_in_any_case(server.close())
        metadata, self._metadata = self._metadata, None
        if metadata is not None and not (self.failed.done() and self._keeps_metadata):
            await _close_in_any_case(metadata.close())

    @property
    def _keeps_metadata(self) -> bool:
        """Whether the metadata is on this node's disk, where nothing more is written after a failure."""
        return self._open_metadata is None and self.settings.metadata == "local"

    async def _own_number(
        self, identity: NodeIdentity, store: MetadataStore, imported: SingleNodeMetadata | None
    ) -> int:
        if self.settings.node_id >= 0:
            return self.settings.node_id
        if identity.node_id is not None:
            return identity.node_id
        return 0 if self._is_alone or imported is not None else await draw_node_id(store)

    def _catalog(self, store: MetadataStore) -> Catalog:
        settings = self.settings
        return Catalog(
            store,
            settings.node_id,
            self._origins.new_id,
            max_partitions=settings.max_partitions,
            max_partitions_per_topic=settings.max_partitions_per_topic,
            config_defaults=settings.topic_defaults,
            internal_segment_bytes={
                OFFSETS_TOPIC: settings.offsets_segment_bytes,
                TRANSACTIONS_TOPIC: settings.transactions_segment_bytes,
            },
            cluster=not self._is_alone,
            default_replication_factor=settings.default_replication_factor,
            offsets_replication_factor=settings.offsets_replication_factor,
            awaited_nodes=settings.workers,
        )

    def _group_coordinator(self, catalog: Catalog, logs: LogManager, cluster: Cluster | None) -> GroupCoordinator:
        settings = self.settings
        config = GroupConfig(
            min_session_timeout_ms=settings.min_session_timeout_ms,
            max_session_timeout_ms=settings.max_session_timeout_ms,
            initial_rebalance_delay_ms=settings.initial_rebalance_delay_ms,
            group_max_size=settings.group_max_size,
            offset_metadata_max_bytes=settings.offset_metadata_max_bytes,
            offsets_retention_ms=settings.offsets_retention_ms,
            offsets_retention_check_interval_ms=settings.offsets_retention_check_interval_ms,
        )
        return GroupCoordinator(
            catalog,
            logs,
            config,
            self._timers,
            FairQueue(),
            new_member_id=lambda client_id: f"{client_id}-{self._origins.new_id()}",
            wall_ms=self._origins.wall_ms,
            cluster=cluster,
            history=RebalanceHistory() if settings.http else None,
        )

    def _transaction_coordinator(
        self,
        catalog: Catalog,
        logs: LogManager,
        groups: GroupCoordinator,
        producer_ids: ProducerIds,
        cluster: Cluster | None,
    ) -> TransactionCoordinator:
        settings = self.settings
        config = TransactionConfig(
            transaction_max_timeout_ms=settings.transaction_max_timeout_ms,
            max_transactional_ids=settings.max_transactional_ids,
            transactional_id_expiration_ms=settings.transactional_id_expiration_ms,
            transaction_partitions=TRANSACTION_PARTITIONS,
        )
        return TransactionCoordinator(
            catalog,
            logs,
            groups,
            config,
            self._timers,
            FairQueue(),
            next_producer_id=producer_ids.take_at_hand,
            wall_ms=self._origins.wall_ms,
            cluster=cluster,
        )

    def _log_maintenance(self, partitions: LogManager) -> LogMaintenance:
        settings = self.settings
        return LogMaintenance(
            partitions,
            self._origins.wall_ms,
            compaction_interval_ms=settings.compaction_interval_ms,
            checkpoint_interval_ms=settings.checkpoint_interval_ms,
            retention_check_interval_ms=settings.retention_check_interval_ms,
            producer_id_expiration_ms=settings.producer_id_expiration_ms,
        )

    async def _close_coordinators(self) -> None:
        """Answers all that wait for a coordinator: transactions first, which logs and groups wait for."""
        if self._transactions is not None:
            await _close_in_any_case(self._transactions.close())
        if self._groups is not None:
            await _close_in_any_case(self._groups.close())
        if self._producer_ids is not None:
            await _close_in_any_case(self._producer_ids.close())

    async def _watch_lock(self, lock: Lock) -> None:
        """Ends the daemon when its data directory is gone: what is written there now will not be found again."""
        while True:
            await asyncio.sleep(_LOCK_CHECK_S)
            try:
                lost = await self._disk.tend(lock.lost)
            except OSError as error:
                log.warning("lock_not_checked", error=str(error))
                continue
            if lost is not None:
                self.fail(f"{lost} while the daemon ran. What is written there now would not be found again")
                return

    async def _release(self, is_kept: bool = False) -> None:
        """``is_kept`` says that all that was acknowledged is on disk."""
        if self._partitions is not None:
            is_kept = await _close_in_any_case(self._partitions.close()) and is_kept
        identity, self._identity = self._identity, None
        if identity is not None:  # the next to take the directory must find the last that is written to it
            is_clean = is_kept and not self.failed.done()
            await _close_in_any_case(identity.stopped() if is_clean else identity.ended())
        lock, self._lock = self._lock, None
        if lock is not None:
            await self._disk.run(lock.release)
        self._timers.close()
        self._disk.close()


def _kafka_port(
    node: Node, handler_of: Mapping[type[Request], Handler], new_id: Callable[[], str], meter: RequestMeter | None
) -> Port[Any]:
    """The port for Kafka's clients. Raises ``ConfigurationError`` where what it needs is not installed."""
    from coordinator.kafka.port import kafka_port  # only who has such a port needs what it imports

    return kafka_port(node, handler_of, new_id, meter)


async def _started(listener: Listener, port: Port[Any], host: str, number: int, options: str) -> tuple[str, int]:
    try:
        return await listener.start(port, host, number)
    except (OSError, ValueError) as error:  # of a name that no DNS could hold: "a..b", one with a null character
        raise AddressError(host, number, error, options) from error


def _connection_limits(settings: Settings) -> ConnectionLimits:
    return ConnectionLimits(
        max_connections=settings.max_connections,
        max_frame_bytes=settings.max_frame_bytes,
        max_in_flight=settings.max_in_flight,
        max_request_memory_bytes=settings.max_request_memory_bytes,
        frame_timeout_ms=settings.frame_timeout_ms,
        max_idle_ms=settings.max_idle_ms,
    )


async def _close_in_any_case(closing: Awaitable[None]) -> bool:
    """A part that does not close well must not keep the lock of the data directory from being released."""
    try:
        await closing
    except Exception:
        log.exception("part_not_closed")
        return False
    return True
