"""The logs of replicas: which directory is opened, made or set aside, and what of the node's word is lost thereby.

A directory is a replica's only if it says so by its topic id; another one under its name is set aside (``.stray``), as is
one that is damaged where other nodes have copies (``.damaged``). Nothing with records is removed, but what the metadata says
was deleted, and replicas that have been moved away. A log that the inventory has and the disk has not is lost: the replica
begins anew, and the node is not clean (``coordinator.nodes.cleanliness``).
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from itertools import count, islice
from typing import Final, Protocol
from weakref import WeakValueDictionary

from coordinator.filesystem.executor import Disk
from coordinator.filesystem.storage import Storage, WriteInDoubtError, is_full
from coordinator.log.directories import is_partition_directory
from coordinator.log.errors import LogDamagedError
from coordinator.log.partition import PartitionLog
from coordinator.log_output import get_logger
from coordinator.logs.log_manager import LogManager, directory_of
from coordinator.logs.topic_ids import topic_id_of
from coordinator.metadata.catalog import Topic
from coordinator.nodes.cleanliness import opening

log = get_logger()

STRAY: Final = ".stray"
DAMAGED: Final = ".damaged"
_AT_ONCE: Final = 16
_MADE_AT_ONCE: Final = 256


class Inventory(Protocol):
    """``coordinator.nodes.inventory.Inventory``."""

    @property
    def logs(self) -> frozenset[tuple[str, int]]:
        """All that is in it, by topic id and number."""

    def has(self, topic_id: str, index: int, /) -> bool:
        """Whether a log was made here, and not removed."""

    async def add(self, logs: list[tuple[str, int]], /) -> None:
        """Notes logs, durably."""

    async def remove(self, logs: list[tuple[str, int]], /) -> None:
        """Forgets logs, durably."""


class ReplicaLogs:
    """Opens, makes and removes the logs of this node's replicas. ``lost`` says of which of them something is gone.

    ``not_clean`` notes durably that something is, before a log begins anew: afterwards the disk shows it no more.
    """

    def __init__(
        self, disk: Disk, logs: LogManager, inventory: Inventory, not_clean: Callable[[], Awaitable[None]]
    ) -> None:
        self.manager = logs
        self.lost: dict[str, str] = {}
        """Directories of logs that were there and are not, or not as a whole, with why."""
        self._disk = disk
        self._inventory = inventory
        self._not_clean = not_clean
        self._working = asyncio.Semaphore(_AT_ONCE)
        self._wanted: dict[str, tuple[Topic, int]] = {}
        """Logs that are to be made, by their directories."""
        self._making = asyncio.Lock()
        self._locks: WeakValueDictionary[str, asyncio.Lock] = WeakValueDictionary()

    async def open(self, topic: Topic, index: int, *, may_begin_anew: bool) -> PartitionLog:
        """The log of a replica. ``may_begin_anew`` says that one that is damaged or gone may begin anew: others have copies,
        and this node has not told the cluster yet what it has.

        Raises ``LogDamagedError`` and ``OSError``.
        """
        directory, partition = directory_of(topic.name, index), (topic.topic_id, index)
        async with self._lock(directory):
            async with self._working:
                found = await self._disk.tend(topic_id_of, self._disk.storage, directory)
            known = [partition] if self._inventory.has(*partition) else []
            todo = opening(partition, topic.topic_id if found == "" else found, known)
            if todo == "lost":
                self._note_lost(directory, "it is in the inventory of this data directory and not on disk")
                if not may_begin_anew:
                    raise LogDamagedError(directory, "its directory", "it is missing")
                await self._not_clean()
            if todo != "opened":
                await self._make(topic, index, found)
            await self._inventory.add([partition])
            async with self._working:
                return await self._opened(topic, index, bool(known), may_begin_anew)

    async def _opened(self, topic: Topic, index: int, known: bool, may_begin_anew: bool) -> PartitionLog:
        """One that the inventory did not know has served nobody: it was being made when the machine lost its power."""
        try:
            return await self.manager.open_replica(topic, index)
        except LogDamagedError as error:
            directory = directory_of(topic.name, index)
            if known:
                self._note_lost(directory, str(error))
                if not may_begin_anew:
                    raise
                await self._not_clean()
            await self._set_aside(directory, DAMAGED)
            await self.manager.make_all([(topic, index)])
            return await self.manager.open_replica(topic, index)

    async def _make(self, topic: Topic, index: int, found: str | None) -> None:
        if found is not None:
            log.warning("log_of_another_topic_set_aside", topic=topic.name, partition=index, topic_id=found)
            await self._set_aside(directory_of(topic.name, index), f".{found}{STRAY}")
        directory = directory_of(topic.name, index)
        self._wanted[directory] = topic, index
        try:
            async with self._making:
                if directory in self._wanted:  # else it was made together with another
                    await self._make_together(directory)
        finally:
            self._wanted.pop(directory, None)

    async def _make_together(self, first: str) -> None:
        """Makes a log and those that wait as well: a topic of many partitions costs few syncs."""
        some = {first: self._wanted[first], **dict(islice(self._wanted.items(), _MADE_AT_ONCE))}
        try:
            await self.manager.make_all(list(some.values()))
        except WriteInDoubtError:
            raise
        except OSError:
            if len(some) == 1:
                raise
            some = {first: some[first]}  # what is wrong with one of them keeps no other from being made
            await self.manager.make_all(list(some.values()))
        for directory in some:
            self._wanted.pop(directory, None)

    async def remove(self, topic: str, topic_id: str, index: int) -> None:
        """Removes the log of a replica, if the directory is of this topic. Raises ``OSError``."""
        async with self._lock(directory_of(topic, index)), self._working:
            await self._inventory.remove([(topic_id, index)])
            found = await self._disk.tend(topic_id_of, self._disk.storage, directory_of(topic, index))
            if found == topic_id:
                await self.manager.delete(topic, [index])

    async def set_damaged_aside(self, topic: str, topic_id: str, index: int) -> None:
        """Closes a log that proved to be damaged, and sets it aside, for a replica that nobody counts on.

        The inventory forgets it first: without it the node lacks nothing that anybody was told it had. Raises ``OSError``.
        """
        directory = directory_of(topic, index)
        async with self._lock(directory):
            await self._inventory.remove([(topic_id, index)])
            await self.manager.close_replica(topic, index, discards=True)
            async with self._working:
                if await self._disk.tend(topic_id_of, self._disk.storage, directory) == topic_id:
                    await self._set_aside(directory, DAMAGED)

    async def set_strays_aside(self, here: Mapping[str, tuple[str, int]]) -> None:
        """Sets directories of partitions aside that are not ``here``, by directory: the metadata knows no reason for them.

        What was moved away while the node was down is not lost when it comes back: the inventory forgets it first. On a full
        disk it cannot, and all of them stay where they are until a later start. Raises another ``OSError``.
        """
        try:
            await self._inventory.remove(sorted(self._inventory.logs.difference(here.values())))
        except OSError as error:
            if not is_full(error):
                raise
            log.warning("stray_directories_left", error=str(error))
            return
        for name in await self._disk.tend(self._disk.storage.list, ""):
            if is_partition_directory(name) and name not in here:
                log.warning("stray_directory_set_aside", directory=name)
                await self._set_aside(name, STRAY)

    def _lock(self, directory: str) -> asyncio.Lock:
        """Held while a directory is looked at and changed: a namesake may be made while the log of a deleted topic goes."""
        return self._locks.setdefault(directory, asyncio.Lock())

    async def _set_aside(self, directory: str, suffix: str) -> None:
        await self._disk.tend(_rename, self._disk.storage, directory, suffix)

    def _note_lost(self, directory: str, why: str) -> None:
        if self.lost.get(directory) != why:
            self.lost[directory] = why
            log.error("log_lost", directory=directory, reason=why)


def _rename(storage: Storage, directory: str, suffix: str) -> None:
    for number in count():
        name = f"{directory}{f'.{number}' * (number > 0)}{suffix}"
        if not storage.exists(name):
            storage.rename(directory, name)
            storage.sync_directory("")
            return
