"""A coordinator of this node: its pure cores, each over one partition of an internal topic.

A node that is alone opens the partitions that have a log when the daemon starts; another gets its log when it is first asked
for. In a cluster a node runs the cores of the partitions that it leads: ``lead`` and ``resign`` follow the leadership.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Final, Generic, NamedTuple

from coordinator.log.errors import LogError, LogWriteError
from coordinator.log.partition import PartitionLog
from coordinator.log_output import get_logger
from coordinator.logs.log_manager import LogManager
from coordinator.metadata.catalog import Catalog
from coordinator.metadata.partitions import NO_LEADER
from coordinator.runtime.clocks import Clocks
from coordinator.runtime.cluster import Cluster
from coordinator.runtime.core import AnyCore
from coordinator.runtime.effects import TimerName
from coordinator.runtime.fair_queue import FairQueue
from coordinator.runtime.pending_replies import PendingReplies
from coordinator.runtime.shard import CarryOut, CoordinatorShard, Services, ShardState, no_orders
from coordinator.runtime.timers import CoordinatorTimers
from protocol.errors import ErrorCode
from protocol.messages import Request, Response

log = get_logger()

RETRY_S: Final = 1.0
MAX_RETRY_S: Final = 60.0


class Names(NamedTuple):
    """What is coordinated has a name, which says its shard.

    ``fault`` is why a name cannot be one, perhaps for being longer than ``max_bytes``. ``refusal`` makes the answer to a
    request that carries nothing but an error.
    """

    kind: str
    partition_of: Callable[[str], int]
    max_bytes: int
    fault: Callable[[str], tuple[ErrorCode, str] | None]
    refusal: Callable[[Request, ErrorCode, str], Response]


class CoordinatorRuntime(Generic[AnyCore]):
    """Runs a core of one class for each partition of ``topic``; ``names`` says which has a group, or whatever it is.

    ``core_class`` says what holds for all of them, ``new_core(partition)`` makes one. All coordinators of a node share
    ``timers``, and ``fair_queue`` for work in slices: loads and large decisions. ``on_active`` is called whenever a shard
    has read its log and serves, ``on_resigned`` when one has lost its partition, ``carry_out`` with each order that a core
    gives (see ``Effects.order``). ``cluster`` is None for a node that is alone.
    """

    def __init__(
        self,
        topic: str,
        core_class: type[AnyCore],
        names: Names,
        new_core: Callable[[int], AnyCore],
        catalog: Catalog,
        logs: LogManager,
        timers: CoordinatorTimers,
        fair_queue: FairQueue,
        *,
        wall_ms: Callable[[], int],
        on_active: Callable[[CoordinatorShard[AnyCore]], None] = lambda shard: None,
        on_resigned: Callable[[CoordinatorShard[AnyCore]], None] = lambda shard: None,
        carry_out: CarryOut[AnyCore] = no_orders,
        cluster: Cluster | None = None,
    ) -> None:
        self.topic = topic
        self.replies = PendingReplies(core_class.request_is_about)
        """The requests that have no answer yet."""
        self.fault = names.fault
        """What is wrong with a name, before anything is kept under it."""
        self._names = names
        self.partition_of, self._max_name_bytes = names.partition_of, names.max_bytes  # asked at every request
        self._new_core = new_core
        self._catalog = catalog
        self._logs = logs
        self._on_active, self._on_resigned = on_active, on_resigned
        self._carry_out = carry_out
        self._cluster = cluster
        self._membership = None if cluster is None else cluster.membership
        self._services = Services(self.replies, timers, fair_queue, Clocks(asyncio.get_running_loop(), wall_ms))
        self.opened: dict[int, CoordinatorShard[AnyCore]] = {}
        """The shards that have been opened since the daemon started, by partition; in a cluster those that it leads."""
        self._opening: dict[int, asyncio.Lock] = {}
        self._reopening: asyncio.Task[None] | None = None
        timers.serve(topic, self._on_timer, core_class.WAITS_FOR_OTHERS)

    async def start(self) -> None:
        """Begins to load every shard that has a log on disk; the others are made when a client needs them.

        A log that is damaged or that the disk refuses to open keeps its own partition from being served, and no other. The
        disk is asked again when a client looks for the coordinator, and now and then, as others may wait for the shard.
        In a cluster it is ``lead`` that opens shards.
        """
        if self._cluster is not None:
            return
        created = [partition for partition in self._partitions() if self.is_created(partition)]
        settled = await asyncio.gather(*(self._settled(partition, load=False) for partition in created))
        for shard in self.shards():
            shard.start_loading()  # not before: the threads that recover logs and the loop that loads would take turns
        refused = [partition for partition, done in zip(created, settled, strict=True) if not done]
        if refused:
            self._reopening = asyncio.create_task(self._reopen(refused), name=f"cohort-reopen-{self.topic}")

    def lead(self, partition: int, partition_log: PartitionLog, leader_epoch: int) -> None:
        """This node leads a partition from now on, in a cluster: its log is read up to its end, and served as soon as the
        followers have that. Nothing else appends to it."""
        self.resign(partition)
        shard = self._new_shard(partition, partition_log, leader_epoch)
        self.opened[partition] = shard
        shard.start_loading()

    def resign(self, partition: int) -> None:
        """This node does not lead a partition any more, if it did: all that wait for it are told so at once."""
        shard = self.opened.pop(partition, None)
        if shard is not None:
            shard.resign()
            self._on_resigned(shard)

    def leader_of(self, partition: int) -> int:
        """The node that leads a partition, ``NO_LEADER`` while there is none or the topic is not made yet."""
        topic = self._catalog.topics.get(self.topic)
        return NO_LEADER if topic is None else topic.partitions[partition].leader

    async def open(self, name: str) -> int:
        """Makes sure that the shard of a name is there and loaded; returns its partition. Raises as ``open_partition``."""
        partition = self.partition_of(name)
        await self.open_partition(partition)
        return partition

    def shard(self, name: str, /) -> CoordinatorShard[AnyCore] | None:
        """The shard of a name, or None when no client has asked for its coordinator since the daemon started; in a cluster
        when another node leads its partition, or may by now.

        None as well for a name that ``fault`` refuses: it must not even reach the cache of hashes.
        """
        if not 0 < len(name) <= self._max_name_bytes:
            return None
        if self._membership is not None and not self._membership.valid():
            return None
        return self.opened.get(self.partition_of(name))

    def without_shard(self, request: Request, name: str, /) -> Response:
        """The answer to a request about a name whose shard is not there."""
        fault = self.fault(name)
        if fault is None and self._membership is not None:
            fault = ErrorCode.NOT_COORDINATOR, self.why_not_here(self.partition_of(name))
        elif fault is None:
            kind = self._names.kind
            text = f"no client has asked for this {kind}'s coordinator since the daemon started: send FindCoordinator first"
            fault = ErrorCode.NOT_COORDINATOR, text
        return self._names.refusal(request, *fault)

    async def open_partition(self, partition: int) -> None:
        """Makes sure that the shard of a partition is there and loaded.

        Raises ``LogError`` when its log is damaged, or refuses writes or reads at the moment; ``OSError`` when the disk
        refuses to make one.
        """
        shard = await self._open(partition)
        obstacle = await shard.loaded_or_held_up()
        if obstacle:
            raise LogWriteError(obstacle)
        if shard.state is ShardState.FAILED:
            raise LogWriteError(self._unreadable(partition))

    def why_not_here(self, partition: int) -> str:
        """Why this node of a cluster does not coordinate what belongs to a partition."""
        assert self._membership is not None, "a node that is alone leads everything"
        leader, where = self.leader_of(partition), f"{self.topic}-{partition}"
        if not self._membership.valid():
            return (
                f"node {self._membership.me.node} has lost its place in the cluster and cannot coordinate: ask another"
            )
        if self.topic not in self._catalog.topics:
            return self._catalog.internal_topics_missing()
        if leader == NO_LEADER:
            return f"{where} has no leader at the moment; find the coordinator again"
        if leader == self._membership.me.node:
            return f"node {leader} has become the leader of {where} and does not serve it yet; try again"
        return f"node {leader} leads {where} and is the coordinator; find it again"

    def is_created(self, partition: int) -> bool:
        """Whether a partition has a log, open or not."""
        return self._logs.is_created(self.topic, partition)

    def shards(self) -> list[CoordinatorShard[AnyCore]]:
        """Every shard that is open, in order."""
        return [self.opened[partition] for partition in sorted(self.opened)]

    def damage(self) -> str | None:
        """What keeps some shard from being served, if anything does."""
        partitions = self._partitions() if self._cluster is None else ()  # elsewhere a replica takes its place
        damaged = (self._logs.damage(self.topic, partition) for partition in partitions)
        failed = (self._unreadable(shard.partition) for shard in self.shards() if shard.state is ShardState.FAILED)
        return next((text for text in damaged if text is not None), None) or next(failed, None)

    async def wait_loaded(self) -> None:
        """Returns once every shard that was on disk at the start has been read."""
        await asyncio.gather(*(shard.loaded() for shard in self.shards()))

    async def close(self) -> None:
        """Answers all pending requests and brings every shard to rest."""
        if self._reopening is not None:
            self._reopening.cancel()
            await asyncio.gather(self._reopening, return_exceptions=True)
        await asyncio.gather(*(shard.close() for shard in self.shards()))
        self.replies.drain()

    async def _settled(self, partition: int, *, load: bool = True) -> bool:
        """Opens a shard; returns whether that is done with: it is open, or its log is damaged. Else the disk has refused."""
        try:
            await self._open(partition, load=load)
        except (LogError, OSError) as error:
            log.error("coordinator_not_served", shard=f"{self.topic}-{partition}", error=str(error))
            return isinstance(error, LogError)
        return True

    async def _reopen(self, partitions: list[int]) -> None:
        pause_s = RETRY_S
        while partitions:
            await asyncio.sleep(pause_s)
            pause_s = min(2 * pause_s, MAX_RETRY_S)
            partitions = [partition for partition in partitions if not await self._settled(partition)]

    async def _open(self, partition: int, *, load: bool = True) -> CoordinatorShard[AnyCore]:
        async with self._opening.setdefault(partition, asyncio.Lock()):
            shard = self.opened.get(partition)
            if shard is None:
                damage = self._logs.damage(self.topic, partition)
                opened = None if damage else await self._logs.open_one(self._catalog.topics[self.topic], partition)
                if opened is None:
                    raise LogWriteError(damage or self._logs.damage(self.topic, partition) or "not opened")
                leader_epoch = self._catalog.topics[self.topic].partitions[partition].leader_epoch
                shard = self.opened[partition] = self._new_shard(partition, opened, leader_epoch)
                if load:
                    shard.start_loading()
        return shard

    def _active(self, shard: CoordinatorShard[AnyCore]) -> None:
        self._tell_readable(shard, "")
        self._on_active(shard)

    def _tell_readable(self, shard: CoordinatorShard[AnyCore], why_not: str) -> None:
        if self._cluster is not None:
            self._cluster.readable(self.topic, shard.partition, shard.leader_epoch, why_not)

    def _new_shard(self, partition: int, partition_log: PartitionLog, leader_epoch: int) -> CoordinatorShard[AnyCore]:
        return CoordinatorShard(
            self.topic,
            partition,
            partition_log,
            self._new_core,
            self._services,
            self._active,
            self._carry_out,
            leader_epoch,
            is_replicated=self._cluster is not None,
            on_unreadable=self._tell_readable,
        )

    def _partitions(self) -> range:
        return range(len(self._catalog.topics[self.topic].partitions))

    def _unreadable(self, partition: int) -> str:
        return f"the log of {self.topic}-{partition} cannot be read: see the daemon's log"

    def _on_timer(self, partition: int, name: TimerName) -> None:
        shard = self.opened.get(partition)
        if shard is not None:  # else its timers were cancelled just now
            shard.on_timer(name)
