"""The partition logs of this node, opened, served and removed as the catalog says."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence

from coordinator.disk import Disk
from coordinator.log.config import LogConfig
from coordinator.log.errors import LogDamagedError, LogError
from coordinator.log.partition import DELETED_SUFFIX, PartitionLog
from coordinator.log_output import get_logger
from coordinator.metadata.catalog import Catalog, Topic

log = get_logger()

_OPENED_AT_ONCE = 16


class Partitions:
    """Logs by topic and partition. A log that is damaged is not opened; what is wrong with it is kept for the answers."""

    def __init__(
        self, disk: Disk, catalog: Catalog, log_config: Callable[[Topic], LogConfig], on_fatal: Callable[[str], None]
    ) -> None:
        self._disk = disk
        self._catalog = catalog
        self._log_config = log_config
        self._on_fatal = on_fatal
        self._logs: dict[tuple[str, int], PartitionLog] = {}
        self._damaged: dict[tuple[str, int], str] = {}

    async def open_all(self) -> None:
        """Finishes deletions that a crash cut short, then opens the logs of every topic of clients."""
        for topic_id, name, partitions in self._catalog.deletions():
            await self._remove_directories(name, range(partitions))
            await self._catalog.end_deletion(topic_id)
        storage = self._disk.storage
        for name in await self._disk.run(storage.list, ""):
            if name.endswith(DELETED_SUFFIX):  # a removal that a crash cut short
                await self._disk.run(storage.remove_tree, name)
        for topic in self._catalog.topics.values():
            if not topic.internal:
                await self.open(topic, range(len(topic.partitions)))

    async def open(self, topic: Topic, indexes: Sequence[int]) -> None:
        """Opens or creates the logs of some partitions. Raises ``OSError`` when the disk refuses a new one."""
        for start in range(0, len(indexes), _OPENED_AT_ONCE):
            opening = [self.open_one(topic, index) for index in indexes[start : start + _OPENED_AT_ONCE]]
            # All are waited for even if one fails: none may come to life after the failure has been dealt with.
            for opened in await asyncio.gather(*opening, return_exceptions=True):
                if isinstance(opened, BaseException):
                    raise opened

    async def open_one(self, topic: Topic, index: int) -> PartitionLog | None:
        """Opens the log of one partition; None, with a line in the daemon's log, when it is damaged."""
        state = topic.partitions[index]
        try:
            opened = await PartitionLog.open(
                self._disk,
                directory_of(topic.name, index),
                self._log_config(topic),
                leader_epoch=state.leader_epoch,
                on_fatal=self._on_fatal,
            )
        except LogDamagedError as error:
            self._damaged[topic.name, index] = str(error)
            log.error("a partition is damaged and not served", topic=topic.name, partition=index, error=str(error))
            return None
        self._logs[topic.name, index] = opened
        return opened

    def get(self, topic: str, index: int) -> PartitionLog | None:
        """The log of a partition, or None when it does not exist or is damaged."""
        return self._logs.get((topic, index))

    def damage(self, topic: str, index: int) -> str | None:
        """What is wrong with a partition that is not served."""
        return self._damaged.get((topic, index))

    async def exists_on_disk(self, topic: str, index: int) -> bool:
        """Whether the partition has a directory already."""
        return await self._disk.run(self._disk.storage.exists, directory_of(topic, index))

    async def delete(self, topic: Topic, indexes: Sequence[int]) -> None:
        """Closes and removes some logs of a topic."""
        for index in indexes:
            self._damaged.pop((topic.name, index), None)
            opened = self._logs.pop((topic.name, index), None)
            if opened is not None:
                await opened.delete()
        await self._remove_directories(topic.name, indexes)

    async def flush(self) -> None:
        """Waits until everything appended so far is on disk and acknowledged."""
        for opened in tuple(self._logs.values()):
            try:
                await opened.flush()
            except LogError as error:
                log.error("a log could not be flushed", directory=opened.directory, error=str(error))

    async def close(self) -> None:
        """Flushes and closes every log."""
        for opened in self._logs.values():
            await opened.close()
        self._logs.clear()

    async def _remove_directories(self, name: str, indexes: Sequence[int]) -> None:
        for index in indexes:
            directory = directory_of(name, index)
            if await self._disk.run(self._disk.storage.exists, directory):
                await self._disk.run(self._disk.storage.remove_tree, directory)


def directory_of(topic: str, index: int) -> str:
    """The directory of a partition, relative to the data directory."""
    return f"{topic}-{index}"
