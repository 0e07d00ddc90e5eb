"""All replicas of this node, made from the catalog: what comes, changes and goes there.

``open`` comes before the node registers, as what is lost on its disk is part of what it registers with. ``become`` gives
roles to the replicas, after each registration; ``lost`` takes them away. In between a delta tells each replica that it is
about, and nothing is done for the others.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Final

from coordinator.filesystem.executor import Disk
from coordinator.filesystem.storage import WriteInDoubtError
from coordinator.log.errors import LogError
from coordinator.log.partition import PartitionLog
from coordinator.log_output import get_logger
from coordinator.logs.log_manager import directory_of
from coordinator.metadata.authority import Compare, Put
from coordinator.metadata.catalog import Catalog, Topic
from coordinator.metadata.keys import encode_partition, live_key, partition_key
from coordinator.metadata.store import MetadataStore, MetadataUnavailableError, Stop
from coordinator.replication.isr_changes import IsrChanges
from coordinator.replication.leading import Leading, unheard_ms
from coordinator.replication.partition import Incarnation, LiveNode, ReplicationConfig
from coordinator.replication.replica import NOT_REGISTERED, Replica, ReplicaError
from coordinator.replication.replica_logs import ReplicaLogs
from coordinator.replication.watermarks import PATH, Hint, HintsError, decode, encode

log = get_logger()

OnRole = Callable[[str, int, PartitionLog | None, int], None]

_TICK_S: Final = 1.0
_HINTS_S: Final = 5.0
_LOOKS_PER_LAG: Final = 4
"""How often, in the time that a replica may lag, leaders look whether one does."""


class Replicas:
    """See the module text."""

    def __init__(
        self,
        catalog: Catalog,
        store: MetadataStore,
        disk: Disk,
        logs: ReplicaLogs,
        *,
        replica_lag_time_max_ms: int,
        wall_ms: Callable[[], int],
        deletion_done: Callable[[Sequence[str], int], Awaitable[None]],
        on_fatal: Callable[[str], None],
    ) -> None:
        """``deletion_done`` takes a node out of the notes of deleted topics, by topic ids and node."""
        self.by_id: dict[tuple[str, int], Replica] = {}
        self.me = Incarnation(catalog.node_id, NOT_REGISTERED)
        self.wall_ms = wall_ms
        self._catalog = catalog
        self._store = store
        self._disk = disk
        self._logs = logs
        self._lag_ms = replica_lag_time_max_ms
        self._deletion_done = deletion_done
        self._on_fatal = on_fatal
        self._loop = asyncio.get_running_loop()
        self._changes = IsrChanges(store)
        self._hints: Mapping[tuple[str, int], Hint] = {}
        self._noting = asyncio.Lock()
        self._opened = False
        """Whether it has been said what this node has."""
        self._suspended = False
        self._retiring: dict[tuple[str, int], asyncio.Task[None]] = {}
        self._heard_ms: dict[int, int] = {}
        self._followed: dict[int, dict[tuple[str, int], Replica]] = {}
        self._role_listeners: list[OnRole] = []
        self._asking_listeners: list[Callable[[int], None]] = []
        self._stops: list[Stop] = []
        self._tasks: list[asyncio.Task[None]] = []

    # Start and stop

    async def open(self) -> bool:
        """Opens or makes the logs of all replicas that this node has; returns whether something that was there is gone.

        Raises ``OSError``.
        """
        self._hints = await self._read_hints()
        await self._remove_deleted()
        self._stops = [
            self._catalog.on_partitions(self._partitions_changed),
            self._catalog.on_nodes(self._nodes_changed),
        ]
        fresh = [
            replica
            for topic, index in self._catalog.partitions_of(self.me.node)
            if (replica := self._made(topic, index))
        ]
        await self._logs.set_strays_aside(
            {directory_of(replica.topic, replica.index): (replica.topic_id, replica.index) for replica in fresh}
        )
        await asyncio.gather(*(replica.open() for replica in fresh))
        self._opened = True
        return bool(self._logs.lost)

    def become(self, me: Incarnation) -> None:
        """The node is registered, perhaps anew: its replicas follow, and lead what this incarnation was elected for."""
        self.me, self._suspended = me, False
        self._heard_ms.clear()
        for replica in tuple(self.by_id.values()):
            replica.resume()
            self._observe(replica)
        if not self._tasks:
            self._tasks = [
                self._loop.create_task(self._watch(), name="cohort-replicas"),
                self._loop.create_task(self._note_hints(), name="cohort-high-watermarks"),
            ]

    def lost(self) -> None:
        """The node is registered no more: it leads and follows nothing until ``become``."""
        self.me = Incarnation(self.me.node, NOT_REGISTERED)
        for replica in tuple(self.by_id.values()):
            self._observe(replica)

    def suspend(self) -> None:
        """The node may not answer for now. It serves nothing; roles stay."""
        self._suspended = True
        for replica in tuple(self.by_id.values()):
            replica.suspend()

    def resume(self) -> None:
        """The node may answer again, as the same incarnation."""
        self._suspended = False
        for replica in tuple(self.by_id.values()):
            replica.resume()

    async def close(self) -> None:
        """Ends all roles and notes the high watermarks. The logs stay open, for their manager to close."""
        for stop in self._stops:
            stop()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        await self._changes.close()
        for replica in tuple(self.by_id.values()):
            await replica.close()
        await asyncio.gather(*self._retiring.values(), return_exceptions=True)
        await self.note_high_watermarks()

    # What others ask and are told

    def followed(self, node: int) -> Mapping[tuple[str, int], Replica]:
        """The replicas that follow a node, as it is registered now."""
        known = self._catalog.live.get(node)
        if known is None:
            return {}
        leader = Incarnation(node, known.broker_epoch)
        return {
            partition: replica
            for partition, replica in self._followed.get(node, {}).items()
            if replica.following is not None and replica.leader_node == leader
        }

    def on_followed(self, listener: Callable[[int], None]) -> Stop:
        """Calls ``listener`` with a node when what is followed of it has changed, or there may be something to ask."""
        self._asking_listeners.append(listener)
        return lambda: self._asking_listeners.remove(listener)

    def on_role(self, listener: OnRole) -> Stop:
        """Calls ``listener`` with topic, number, log and leader epoch when this node serves a partition from now on; without
        a log when it does no more, before anything that waits there is told so.
        """
        self._role_listeners.append(listener)
        return lambda: self._role_listeners.remove(listener)

    def heard(self, follower: Incarnation) -> None:
        """A follower has sent a fetch, whatever it names."""
        self._heard_ms[follower.node] = self.now_ms()

    def _is_unheard(self, node: int) -> bool:
        """Whether a follower was not heard for so long that its leader gives up hope."""
        return self.now_ms() - self._heard_ms.get(node, 0) >= unheard_ms(self._lag_ms)

    def get(self, topic: str, index: int) -> Replica | None:
        """The replica of a partition."""
        known = self._catalog.topics.get(topic)
        return None if known is None else self.by_id.get((known.topic_id, index))

    # What replicas ask

    @property
    def live(self) -> Mapping[int, LiveNode]:
        """The nodes that live."""
        return self._catalog.live

    def now_ms(self) -> int:
        """The loop's clock."""
        return int(self._loop.time() * 1000)

    def propose(self, leading: Leading) -> None:
        """The in-sync replicas of a partition may have to change."""
        self._changes.look_at(leading)

    def config(self, replica: Replica) -> ReplicationConfig:
        """What holds for a replica."""
        topic = self._catalog.with_id(replica.topic_id)
        if topic is None:
            return ReplicationConfig(self._lag_ms)
        return ReplicationConfig(self._lag_ms, self._catalog.config(topic).delete_retention_ms)

    async def open_log(self, replica: Replica) -> PartitionLog:
        """Opens or makes a replica's log, once that of a namesake is closed."""
        before = self._retiring.get((replica.topic, replica.index))
        if before is not None:
            await asyncio.wait((before,))
        topic = self._catalog.with_id(replica.topic_id)
        if topic is None:
            raise ReplicaError(f"the topic of {replica.name} was deleted")
        registration = replica.registration
        alone = registration is None or len(registration.replicas) + len(registration.adding) == 1
        try:
            return await self._logs.open(topic, replica.index, may_begin_anew=not alone and not self._opened)
        except WriteInDoubtError as error:
            self._on_fatal(f"the log of {replica.name} could not be opened: {error}. What is on disk is unknown")
            raise
        except (LogError, OSError) as error:
            self._logs.manager.note_offline(replica.topic, replica.index, str(error))
            raise

    async def close_log(self, replica: Replica) -> None:
        """Closes a replica's log."""
        await self._logs.manager.close_replica(replica.topic, replica.index)

    async def set_log_aside(self, replica: Replica) -> None:
        """Closes a replica's log and gives its directory another name."""
        try:
            await self._logs.set_damaged_aside(replica.topic, replica.topic_id, replica.index)
        except WriteInDoubtError as error:
            self._on_fatal(f"the log of {replica.name} could not be set aside: {error}. What is on disk is unknown")
            raise

    def serving(self, replica: Replica, serves: bool) -> None:
        """A replica serves from now on, or no more."""
        partition = replica.topic, replica.index
        if serves:
            assert replica.log is not None
            self._logs.manager.led[partition] = replica.log
        else:
            self._logs.manager.led.pop(partition, None)
        for listener in tuple(self._role_listeners):
            try:
                listener(*partition, replica.log if serves else None, replica.leader_epoch)
            except Exception:
                log.exception("role_listener_failed", partition=replica.name)

    def asks(self, leader: int) -> None:
        """What is followed of a node, or is to be asked of it, has changed."""
        for listener in tuple(self._asking_listeners):
            listener(leader)

    # What the catalog says

    def _partitions_changed(self, partitions: Sequence[tuple[str, int]]) -> None:
        for topic_id, index in partitions:
            topic = self._catalog.with_id(topic_id)
            here = topic is not None and index < len(topic.partitions) and topic.partitions[index].has(self.me.node)
            replica = self.by_id.get((topic_id, index))
            if topic is not None and here:
                replica = replica or self._made(topic, index)
                if replica is not None:
                    self._observe(replica)
            elif replica is not None:
                self._retire(replica, is_deleted=topic is None)

    def _made(self, topic: Topic, index: int) -> Replica | None:
        """The replica of a partition that this node did not have before."""
        partition = topic.topic_id, index
        if partition in self.by_id:
            return None
        replica = self.by_id[partition] = Replica(topic.name, topic.topic_id, index, self._hints.get(partition), self)
        state = topic.partitions[index]
        replica.note(state.registration, state.partition_epoch)
        if self._suspended:
            replica.suspend()
        return replica

    def _observe(self, replica: Replica) -> None:
        topic = self._catalog.with_id(replica.topic_id)
        if topic is None or replica.index >= len(topic.partitions):
            return
        state = topic.partitions[replica.index]
        before = replica.leader_node
        replica.observe(state.registration, state.partition_epoch)
        if replica.leader_node != before or before is None:
            partition = replica.topic_id, replica.index
            if before is not None:
                self._followed.get(before.node, {}).pop(partition, None)
            if replica.leader_node is not None:
                self._followed.setdefault(replica.leader_node.node, {})[partition] = replica

    def _retire(self, replica: Replica, *, is_deleted: bool) -> None:
        """The node has no replica of this partition any more."""
        del self.by_id[replica.topic_id, replica.index]
        if replica.leader_node is not None:
            self._followed.get(replica.leader_node.node, {}).pop((replica.topic_id, replica.index), None)
        name = replica.topic, replica.index
        before = self._retiring.get(name)
        task = self._loop.create_task(self._retired(replica, is_deleted, before), name=f"retire {replica.name}")
        self._retiring[name] = task

        def done(ended: asyncio.Task[None]) -> None:
            if self._retiring.get(name) is ended:
                del self._retiring[name]

        task.add_done_callback(done)
        replica.stop()

    async def _retired(self, replica: Replica, is_deleted: bool, before: asyncio.Task[None] | None) -> None:
        if before is not None:
            await asyncio.wait((before,))
        await replica.close()
        try:
            await self._logs.manager.close_replica(replica.topic, replica.index, discards=True)
            if not is_deleted or self._catalog.is_deleted(replica.topic_id):
                await self._logs.remove(replica.topic, replica.topic_id, replica.index)
                log.info("replica_removed", partition=replica.name, topic_id=replica.topic_id)
        except WriteInDoubtError as error:
            self._on_fatal(f"the log of {replica.name} could not be removed: {error}. What is on disk is unknown")
        except OSError as error:
            log.warning("replica_not_removed", partition=replica.name, error=str(error))

    def _nodes_changed(self) -> None:
        """A leader looks at once whether one in sync has died, and whether it follows another incarnation."""
        self._look_at_all()
        for node in tuple(self._followed):
            self.asks(node)

    def _look_at_all(self) -> None:
        for replica in self.by_id.values():
            if replica.leading is not None:
                self._changes.look_at(replica.leading)

    # From time to time

    async def _watch(self) -> None:
        looks = 0.0
        while True:
            await asyncio.sleep(_TICK_S)
            try:
                looks += _TICK_S * 1000
                if looks >= self._lag_ms / _LOOKS_PER_LAG:
                    looks = 0.0
                    self._look_at_all()
                await self._hand_over()
                await self._remove_deleted()
            except Exception:
                log.exception("replicas_not_looked_after")

    async def _hand_over(self) -> None:
        """Another leads what this node leads and cannot: followers do not reach it, or its disk refuses the log."""
        unheard = frozenset(node for node in self.live if node != self.me.node and self._is_unheard(node))
        for replica in tuple(self.by_id.values()):
            reason = replica.reason_to_hand_over(unheard)
            elected = replica.handed_over() if reason else None
            if elected is None or elected.leader is None:
                continue
            key = partition_key(replica.topic_id, replica.index)
            compare = [
                Compare(key, "mod", replica.partition_epoch),
                Compare(live_key(self.me.node), "create", self.me.broker_epoch),
                Compare(live_key(elected.leader.node), "create", elected.leader.broker_epoch),
            ]
            log.warning("leadership_handed_over", partition=replica.name, to=elected.leader.node, reason=reason)
            try:
                await self._store.transaction(compare, [Put(key, encode_partition(elected))])
            except (MetadataUnavailableError, OSError) as error:
                log.warning("leadership_not_handed_over", partition=replica.name, error=str(error))
                return

    async def _remove_deleted(self) -> None:
        """Removes what is left of deleted topics, and takes this node out of their notes."""
        removed: list[str] = []
        for topic_id, name, partitions in self._catalog.deletions_of(self.me.node):
            if any((topic_id, index) in self.by_id or (name, index) in self._retiring for index in range(partitions)):
                continue
            try:
                for index in range(partitions):
                    await self._logs.remove(name, topic_id, index)
            except WriteInDoubtError as error:
                self._on_fatal(f"the logs of {name} could not be removed: {error}. What is on disk is unknown")
                return
            except OSError as error:
                log.warning("deleted_topic_not_removed", topic=name, topic_id=topic_id, error=str(error))
            else:
                removed.append(topic_id)
        try:
            await self._deletion_done(removed, self.me.node)
        except (MetadataUnavailableError, OSError) as error:
            log.warning("deletions_not_noted", topics=len(removed), error=str(error))

    # High watermarks on disk

    async def _read_hints(self) -> Mapping[tuple[str, int], Hint]:
        if not await self._disk.run(self._disk.storage.exists, PATH):
            return {}
        try:
            return decode(await self._disk.run(self._disk.storage.read_file, PATH))
        except HintsError as error:
            log.warning("high_watermarks_not_read", error=str(error))
            return {}

    async def _note_hints(self) -> None:
        while True:
            await asyncio.sleep(_HINTS_S)
            await self.note_high_watermarks()

    async def note_high_watermarks(self) -> None:
        """Writes the hints down, unless they are what is written."""
        async with self._noting:
            hints = {partition: replica.hint() for partition, replica in self.by_id.items()}
            if hints == self._hints:
                return
            try:
                await self._disk.run(self._written, hints)
                self._hints = hints
            except OSError as error:  # also one in doubt: these are hints, and a file that is damaged counts as none
                log.warning("high_watermarks_not_noted", error=str(error))

    def _written(self, hints: Mapping[tuple[str, int], Hint]) -> None:
        self._disk.storage.write_file(PATH, encode(hints))
