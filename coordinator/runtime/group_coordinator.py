"""The group coordinator of this node: the shards it leads, opened when the first group needs them."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from coordinator.groups.config import GroupConfig
from coordinator.groups.core import GroupCore
from coordinator.groups.effects import TimerName
from coordinator.log.errors import LogError, LogWriteError
from coordinator.log_output import get_logger
from coordinator.metadata.catalog import OFFSETS_TOPIC, Catalog
from coordinator.partitions import Partitions
from coordinator.runtime.replies import Replies
from coordinator.runtime.shard import GroupShard, ShardState
from coordinator.runtime.timers import Timers
from protocol.hashing import GROUP_PARTITIONS, partition_for_group
from protocol.messages.groups import ListedGroup

log = get_logger()


class GroupCoordinator:
    """Finds the shard of a group and passes requests to it."""

    def __init__(
        self,
        catalog: Catalog,
        partitions: Partitions,
        config: GroupConfig,
        *,
        new_member_id: Callable[[str], str],
        wall_ms: Callable[[], int],
    ) -> None:
        self.replies = Replies()
        self._catalog = catalog
        self._partitions = partitions
        self._new_core = lambda: GroupCore(config, new_member_id)
        self._wall_ms = wall_ms
        self._timers: Timers[tuple[int, TimerName]] = Timers(asyncio.get_running_loop(), self._on_timer)
        self._shards: dict[int, GroupShard] = {}
        self._damaged: dict[int, str] = {}
        self._opening = [asyncio.Lock() for _ in range(GROUP_PARTITIONS)]
        self._loading: dict[asyncio.Task[None], None] = {}

    async def start(self) -> None:
        """Begins to load every shard that has a log on disk; the others are made when a group needs them."""
        for index in range(GROUP_PARTITIONS):
            if await self._partitions.exists_on_disk(OFFSETS_TOPIC, index):
                await self._open(index, wait=False)

    async def open(self, group_id: str) -> int:
        """Makes sure that the shard of a group is there and loaded; returns its index.

        Raises ``LogWriteError`` when its log is damaged, ``OSError`` when the disk refuses to make one.
        """
        index = partition_for_group(group_id)
        await self._open(index, wait=True)
        return index

    def shard(self, group_id: str) -> GroupShard | None:
        """The shard of a group, or None when nobody has asked for its coordinator since the daemon started."""
        return self._shards.get(partition_for_group(group_id))

    def loading(self) -> bool:
        """Whether some shard still reads its log."""
        return any(shard.state is ShardState.LOADING for shard in self._shards.values())

    async def wait_loaded(self) -> None:
        """Returns once every shard that was on disk at the start has been read."""
        await asyncio.gather(*self._loading, return_exceptions=True)

    def list(self, states: frozenset[str]) -> list[ListedGroup]:
        """The groups of all active shards, sorted by id."""
        groups = [group for _, shard in sorted(self._shards.items()) for group in shard.core.list(states)]
        return sorted(groups, key=lambda group: group.group_id)

    async def close(self) -> None:
        """Answers everything that is parked and brings every shard to rest."""
        for task in self._loading:
            task.cancel()
        await asyncio.gather(*self._loading, return_exceptions=True)
        await asyncio.gather(*(shard.close() for shard in self._shards.values()))
        self._timers.close()

    async def compact(self) -> None:
        """Compacts the logs that are worth it, one after the other."""
        for index in sorted(self._shards):
            opened = self._partitions.get(OFFSETS_TOPIC, index)
            if opened is not None:
                try:
                    result = await opened.compact(self._wall_ms())
                except LogError as error:
                    log.error("an offsets log cannot be compacted; the others are", shard=index, error=str(error))
                    continue
                if result is not None:
                    log.info("offsets log compacted", shard=index, result=str(result))

    async def _open(self, index: int, *, wait: bool) -> None:
        async with self._opening[index]:
            shard = self._shards.get(index)
            if shard is None:
                shard = await self._new_shard(index)
                task = asyncio.create_task(shard.load(), name=f"cohort-load-shard-{index}")
                self._loading[task] = None
                task.add_done_callback(lambda done: self._loading.pop(done, None))
                if wait:
                    await asyncio.shield(task)

    async def _new_shard(self, index: int) -> GroupShard:
        if index in self._damaged:
            raise LogWriteError(self._damaged[index])
        opened = await self._partitions.open_one(self._catalog.topics[OFFSETS_TOPIC], index)
        if opened is None:
            self._damaged[index] = f"the log of group partition {index} is damaged: see the daemon's log"
            raise LogWriteError(self._damaged[index])
        shard = GroupShard(index, opened, self._new_core, self.replies, self._timers, self._wall_ms)
        self._shards[index] = shard
        return shard

    def _on_timer(self, name: tuple[int, TimerName]) -> None:
        index, timer = name
        self._shards[index].on_timer(timer)
