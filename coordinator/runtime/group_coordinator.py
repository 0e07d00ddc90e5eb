"""The group coordinator of this node: the shards it leads, opened when the first group needs them."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from coordinator.groups.config import GroupConfig
from coordinator.groups.core import WAITS_FOR_MEMBERS, GroupCore
from coordinator.groups.refusals import Refusal, group_id_fault
from coordinator.log.errors import LogError, LogWriteError
from coordinator.log_output import get_logger
from coordinator.logs.log_manager import LogManager
from coordinator.metadata.catalog import OFFSETS_TOPIC, Catalog
from coordinator.runtime.effects import TimerName
from coordinator.runtime.fair_queue import FairQueue
from coordinator.runtime.pending_replies import PendingReplies
from coordinator.runtime.shard import GroupShard, ShardState
from coordinator.runtime.timers import Timers
from protocol.hashing import GROUP_PARTITIONS, partition_for_group

log = get_logger()


class GroupCoordinator:
    """Finds the shard of a group and passes requests to it."""

    def __init__(
        self,
        catalog: Catalog,
        partitions: LogManager,
        config: GroupConfig,
        *,
        new_member_id: Callable[[str], str],
        wall_ms: Callable[[], int],
    ) -> None:
        self.replies = PendingReplies()
        self._catalog = catalog
        self._partitions = partitions
        self._config = config
        self._new_core = lambda: GroupCore(config, new_member_id)
        self._wall_ms = wall_ms
        self._timers: Timers[tuple[int, TimerName]] = Timers(
            asyncio.get_running_loop(), self._on_timer, lambda name: name[1][0] in WAITS_FOR_MEMBERS
        )
        self._fair_queue = FairQueue()
        self._shards: dict[int, GroupShard] = {}
        self._opening = [asyncio.Lock() for _ in range(GROUP_PARTITIONS)]

    async def start(self) -> None:
        """Begins to load every shard that has a log on disk; the others are made when a group needs them.

        A log that is damaged or that the disk refuses to open keeps its own groups from being served, and no others. The
        disk is asked again when a client looks for the coordinator of such a group.
        """
        for index in range(GROUP_PARTITIONS):
            if self._partitions.is_created(OFFSETS_TOPIC, index):
                try:
                    await self._open(index)
                except (LogError, OSError) as error:
                    log.error("a shard of groups is not served", shard=index, error=str(error))

    def group_id_fault(self, group_id: str) -> Refusal | None:
        """What is wrong with a group id, before anything is kept under it."""
        return group_id_fault(group_id, self._config)

    async def open(self, group_id: str) -> int:
        """Makes sure that the shard of a group is there and loaded; returns its index.

        Raises ``LogError`` when its log is damaged, or refuses writes or reads at the moment; ``OSError`` when the disk
        refuses to make one.
        """
        index = partition_for_group(group_id)
        shard = await self._open(index)
        obstacle = await shard.loaded_or_held_up()
        if obstacle:
            raise LogWriteError(obstacle)
        if shard.state is ShardState.FAILED:
            raise LogWriteError(f"the log of group partition {index} cannot be read: see the daemon's log")
        return index

    def shard(self, group_id: str) -> GroupShard | None:
        """The shard of a group, or None when nobody has asked for its coordinator since the daemon started.

        None as well for an id that ``group_id_fault`` refuses: it must not even reach the cache of hashes.
        """
        if not 0 < len(group_id) <= self._config.max_group_id_bytes:
            return None
        return self._shards.get(partition_for_group(group_id))

    def shards(self) -> list[GroupShard]:
        """Every shard that is open, in order."""
        return [self._shards[index] for index in sorted(self._shards)]

    def close_connection(self, number: int) -> None:
        """A client's connection closed; its requests have been abandoned."""
        for shard in self.shards():
            shard.close_connection(number)

    def damage(self) -> str | None:
        """What keeps some shard from being served, if anything does."""
        for index in range(GROUP_PARTITIONS):
            text = self._partitions.damage(OFFSETS_TOPIC, index)
            if text is not None:
                return text
        failed = [shard.index for shard in self.shards() if shard.state is ShardState.FAILED]
        return f"the log of group partition {failed[0]} cannot be read: see the daemon's log" if failed else None

    async def wait_loaded(self) -> None:
        """Returns once every shard that was on disk at the start has been read."""
        await asyncio.gather(*(shard.loaded() for shard in self.shards()))

    def topic_id(self, topic: str) -> str:
        """The id of a topic that exists."""
        return self._catalog.topics[topic].topic_id

    def is_gone(self, topic: str, topic_id: str) -> bool:
        """Whether the topic for which an offset was committed has been deleted, also when another has its name now.

        ``topic_id`` is "" for an offset written by version 0.1.
        """
        known = self._catalog.topics.get(topic)
        return known is None or (bool(topic_id) and known.topic_id != topic_id)

    async def forget_topic(self, topic: str) -> None:
        """A topic was deleted: its committed offsets go. They count no more from the moment its metadata is gone."""
        for shard in self.shards():
            shard.forget_topic(topic)

    async def close(self) -> None:
        """Answers everything that is parked and brings every shard to rest."""
        await asyncio.gather(*(shard.close() for shard in self.shards()))
        self.replies.drain()
        self._timers.close()

    async def _open(self, index: int) -> GroupShard:
        async with self._opening[index]:
            shard = self._shards.get(index)
            if shard is None:
                damage = self._partitions.damage(OFFSETS_TOPIC, index)
                opened = None if damage else await self._partitions.open_one(self._catalog.topics[OFFSETS_TOPIC], index)
                if opened is None:
                    raise LogWriteError(damage or self._partitions.damage(OFFSETS_TOPIC, index) or "not opened")
                shard = GroupShard(
                    index,
                    opened,
                    self._new_core,
                    self.replies,
                    self._timers,
                    self._wall_ms,
                    self.is_gone,
                    self._fair_queue,
                )
                self._shards[index] = shard
                shard.start_loading()
        return shard

    def _on_timer(self, name: tuple[int, TimerName]) -> None:
        index, timer = name
        self._shards[index].on_timer(timer)
