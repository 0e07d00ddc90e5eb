"""Which partition logs are open on this node: made, opened, served and removed as the catalog says (Kafka's LogManager)."""

from __future__ import annotations

import asyncio
import errno
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final, ParamSpec, TypeVar

from coordinator.filesystem.executor import Disk
from coordinator.filesystem.storage import WriteInDoubtError
from coordinator.log.cleaner import Begin
from coordinator.log.compaction_process import local_work
from coordinator.log.config import LogConfig
from coordinator.log.directories import finish_removals, make_logs, remove_logs, sync_directories, sync_logs
from coordinator.log.errors import LogDamagedError, LogError
from coordinator.log.partition import PartitionLog
from coordinator.log.segment_list import OpenFiles
from coordinator.log_output import get_logger
from coordinator.logs.producer_limit import ProducerLimit
from coordinator.logs.topic_ids import check_topic_id, note_topic_ids
from coordinator.metadata.catalog import Catalog, Topic, TopicError
from coordinator.metadata.topic_config import Value
from protocol.errors import ErrorCode

log = get_logger()

P = ParamSpec("P")
T = TypeVar("T")

_OPENED_AT_ONCE = 16
_CLOSED_AT_ONCE = 64
_MADE_AT_ONCE = 256
_SYNCED_AT_ONCE = 4
_RETRY_S: Final = 1.0
_MAX_RETRY_S: Final = 60.0
_OF_THE_NODE: Final = frozenset({errno.EMFILE, errno.ENFILE, errno.ENOMEM})
"""Errors that say nothing about the file: the process lacks something, and it fails with the next file too."""


@dataclass(frozen=True, slots=True)
class _Retry:
    """When a partition that could not be opened is tried again; ``topic_id`` tells it from a namesake."""

    topic_id: str
    pause_s: float = _RETRY_S
    next_s: float = 0.0


class LogManager:
    """Logs by topic and partition. A log that is damaged is not opened; what is wrong with it is kept for the answers.

    One that the disk refuses to open at the start keeps no other from being served; ``reopen`` tries again.
    Only ``create`` makes directories. A partition that the catalog has and whose directory is gone is damaged.
    ``producer_limit`` bounds what all of them remember of idempotent producers.
    """

    def __init__(
        self,
        disk: Disk,
        catalog: Catalog,
        log_config: Callable[[Topic], LogConfig],
        on_fatal: Callable[[str], None],
        begin_compaction: Begin = local_work,
        *,
        serves_all: bool = True,
    ) -> None:
        """``serves_all`` says that this node leads every partition whose log is open here, as where it is the only one."""
        self._disk = disk
        self._catalog = catalog
        self._log_config = log_config
        self._on_fatal = on_fatal
        self._begin_compaction = begin_compaction
        self._open_files = OpenFiles()
        self.logs: dict[tuple[str, int], PartitionLog] = {}
        """Every log that is open, by topic and partition."""
        self.led = self.logs if serves_all else dict[tuple[str, int], PartitionLog]()
        """Those that this node leads and serves: what requests are about."""
        self._damaged: dict[tuple[str, int], str] = {}
        """Why partitions are not served, those in ``_unopened`` too."""
        self._unopened: dict[tuple[str, int], _Retry] = {}
        self._reopening = asyncio.Lock()
        """Held while a partition is tried again, so that its directory is not removed and made anew meanwhile."""
        self._new: set[str] = set()
        """Directories that were made and synced, of logs that were not opened yet."""
        self.producer_limit = ProducerLimit(self.opened)
        self._configured: dict[str, Mapping[str, Value]] = {
            name: topic.config for name, topic in catalog.topics.items()
        }
        catalog.on_change(self._reconfigure)

    async def open_all(self) -> None:
        """Finishes deletions and removals that were cut short, then opens the logs of every topic of clients."""
        for topic_id, name, count in self._catalog.deletions():
            await self._finish_deletion(topic_id, name, count)
        await self._disk.tend(finish_removals, self._disk.storage)
        for topic in tuple(self._catalog.topics.values()):
            if not topic.internal:
                indexes = range(len(topic.partitions))
                await self._open([(topic, index) for index in indexes], self._open_if_possible)

    async def create(self, topic: Topic, indexes: Sequence[int]) -> None:
        """As ``create_all``, of one topic."""
        await self.create_all([(topic, indexes)])

    async def create_all(self, wanted: Sequence[tuple[Topic, Sequence[int]]]) -> None:
        """Makes and opens the logs of partitions that are not in the catalog yet, durably.

        The partitions of many topics cost hardly more than those of one: see ``directories``. Raises ``OSError`` when the
        disk refuses, and ``FileExistsError`` when there are records in a directory of that name. Some of the logs may be
        there then: ``delete`` them.
        """
        partitions = [(topic, index) for topic, indexes in wanted for index in indexes]
        await self.make_all(partitions)
        await self._open(partitions, self.open_one)

    def _make(self, partitions: Sequence[tuple[Topic, int]]) -> None:
        """Blocks; durable when the directories are synced."""
        directories = [directory_of(topic.name, index) for topic, index in partitions]
        make_logs(self._disk.storage, directories)
        topic_ids = [topic.topic_id for topic, _ in partitions]
        note_topic_ids(self._disk.storage, zip(directories, topic_ids, strict=True))

    async def _sync(self, directories: Sequence[str]) -> None:
        """Makes durable what is in directories.

        A file system with a journal serves syncs that wait at the same time with one commit.
        """
        share = -(-len(directories) // _SYNCED_AT_ONCE)
        syncing = [self._change(sync_directories, self._disk.storage, some) for some in _chunks(directories, share)]
        for synced in await asyncio.gather(
            *syncing, return_exceptions=True
        ):  # none goes on after the failure of another
            if isinstance(synced, BaseException):
                raise synced

    async def open_one(self, topic: Topic, index: int) -> PartitionLog | None:
        """Opens the log of one partition; None, with a line in the daemon's log, when it is damaged.

        A partition of an internal topic is made when it is opened for the first time. Raises ``OSError``.
        """
        if topic.internal and not self.is_created(topic.name, index):
            await self._change(self._make, [(topic, index)])
            await self._change(sync_logs, self._disk.storage, [directory_of(topic.name, index)])
            self._new.add(directory_of(topic.name, index))
            await self._catalog.note_created(topic, index)
        return await self._served(topic, index)

    async def _served(self, topic: Topic, index: int) -> PartitionLog | None:
        try:
            opened = await self._opened(topic, index, topic.partitions[index].leader_epoch)
        except LogDamagedError as error:
            self._note_damage(topic, index, error)
            return None
        self.logs[topic.name, index] = opened
        return opened

    async def open_replica(self, topic: Topic, index: int) -> PartitionLog:
        """Opens the log of a replica of this node, which is there; who leads begins its epoch.

        Raises ``LogDamagedError`` and ``OSError``.
        """
        opened = await self._opened(topic, index, None)
        self.logs[topic.name, index] = opened
        self._damaged.pop((topic.name, index), None)
        self.producer_limit.begun(len(opened.producers))
        return opened

    async def make_all(self, partitions: Sequence[tuple[Topic, int]]) -> None:
        """Makes empty logs, durably. Raises as ``create_all``."""
        directories = [directory_of(topic.name, index) for topic, index in partitions]
        for some in _chunks(partitions, _MADE_AT_ONCE):
            await self._change(self._make, some)
        for chunk in _chunks([*directories, ""], _MADE_AT_ONCE):  # their names are in the data directory, which is ""
            await self._sync(chunk)
        self._new.update(directories)

    async def close_replica(self, topic: str, index: int, *, discards: bool = False) -> None:
        """Closes the log of a replica, if it is open; ``discards`` when its directory is about to go."""
        self._damaged.pop((topic, index), None)
        opened = self.logs.pop((topic, index), None)
        self.led.pop((topic, index), None)
        if opened is not None:
            await (opened.discard() if discards else opened.close())

    def note_offline(self, topic: str, index: int, why: str) -> None:
        """Why a replica of this node has no log, for those who ask for it."""
        self._damaged[topic, index] = why

    async def _opened(self, topic: Topic, index: int, leader_epoch: int | None) -> PartitionLog:
        directory = directory_of(topic.name, index)
        await self._disk.tend(check_topic_id, self._disk.storage, directory, topic.topic_id)
        is_new = directory in self._new
        self._new.discard(directory)
        return await PartitionLog.open(
            self._disk,
            directory,
            self._log_config(topic),
            leader_epoch=leader_epoch,
            on_fatal=self._on_fatal,
            on_new_producer=self.producer_limit.begun,
            open_files=self._open_files,
            begin_compaction=self._begin_compaction,
            is_new=is_new,
        )

    def _note_damage(self, topic: Topic, index: int, error: LogDamagedError) -> None:
        self._damaged[topic.name, index] = str(error)
        log.error("partition_damaged", topic=topic.name, partition=index, error=str(error))

    async def _open_if_possible(self, topic: Topic, index: int) -> PartitionLog | None:
        """As ``open_one``; what the disk says of this partition's files keeps only this partition from being served.

        A sync that failed ends the start (law 3): what memory shows may never reach the disk.
        """
        try:
            return await self.open_one(topic, index)
        except WriteInDoubtError:
            raise
        except OSError as error:
            if error.errno in _OF_THE_NODE:
                raise
            self._note_unopened(topic, index, error, _Retry(topic.topic_id))
            return None

    def _note_unopened(self, topic: Topic, index: int, error: OSError, retry: _Retry) -> None:
        key, now = (topic.name, index), asyncio.get_running_loop().time()
        self._damaged[key] = f"{topic.name}-{index} could not be opened: {error}. The daemon tries again"
        self._unopened[key] = replace(retry, pause_s=min(2 * retry.pause_s, _MAX_RETRY_S), next_s=now + retry.pause_s)
        log.error("partition_not_opened", topic=topic.name, partition=index, error=str(error))

    async def reopen(self) -> None:
        """Tries again to open the partitions that the disk refused at the start, each with growing pauses."""
        for (name, index), retry in tuple(self._unopened.items()):
            if asyncio.get_running_loop().time() >= retry.next_s:
                async with self._reopening:
                    await self._reopen(name, index, retry)

    async def _reopen(self, name: str, index: int, retry: _Retry) -> None:
        topic = self._catalog.topics.get(name)
        if topic is None or topic.topic_id != retry.topic_id or (name, index) not in self._unopened:
            return  # deleted meanwhile
        try:
            opened = await self._served(topic, index)
        except WriteInDoubtError as error:
            self._on_fatal(f"{directory_of(name, index)} could not be opened: {error}. What is on disk is unknown")
            return
        except OSError as error:
            self._note_unopened(topic, index, error, retry)
            return
        del self._unopened[name, index]
        if opened is not None:
            del self._damaged[name, index]
            self.producer_limit.begun(len(opened.producers))
            log.info("partition_reopened", topic=name, partition=index)

    def get(self, topic: str, index: int) -> PartitionLog | None:
        """The log of a partition that this node leads, or None when it does not, or the log is damaged."""
        return self.led.get((topic, index))

    def find(self, topic: Topic, index: int) -> PartitionLog:
        """The log of a partition that this node leads. Raises ``TopicError`` telling why there is none."""
        if not 0 <= index < len(topic.partitions):
            raise TopicError(
                ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
                f"topic {topic.name!r} has partitions 0 to {len(topic.partitions) - 1}, not {index}",
            )
        opened = self.led.get((topic.name, index))
        if opened is None:
            raise self._not_led(topic, index)
        return opened

    def _not_led(self, topic: Topic, index: int) -> TopicError:
        name, leader = f"{topic.name}-{index}", topic.partitions[index].leader
        if leader not in (self._catalog.node_id, -1):
            return TopicError(ErrorCode.NOT_LEADER_OR_FOLLOWER, f"{name} is led by node {leader}, not by this one")
        if leader < 0:
            return TopicError(ErrorCode.LEADER_NOT_AVAILABLE, f"{name} has no leader at the moment; try again")
        damage = self._damaged.get((topic.name, index))
        if damage is not None:
            return TopicError(ErrorCode.KAFKA_STORAGE_ERROR, damage)
        return TopicError(ErrorCode.LEADER_NOT_AVAILABLE, f"{name} is not open at the moment; try again")

    def opened(self) -> list[tuple[str, int, PartitionLog]]:
        """Every log that is open: its topic, its partition, and the log."""
        return [(topic, index, opened) for (topic, index), opened in self.logs.items()]

    def _reconfigure(self, names: Sequence[str]) -> None:
        """Gives open logs the settings that their topics have now."""
        for name in names:
            before = self._configured.pop(name, None)
            topic = self._catalog.topics.get(name)
            if topic is None:
                continue
            self._configured[name] = topic.config
            if before is not None and topic.config is not before:
                for index in range(len(topic.partitions)):
                    if (opened := self.logs.get((name, index))) is not None:
                        opened.configure(self._log_config(topic))

    def damage(self, topic: str, index: int) -> str | None:
        """What is wrong with a partition that is not served."""
        return self._damaged.get((topic, index))

    def lacks_records(self) -> bool:
        """Whether something of what was on disk is damaged or gone."""
        return bool(self._damaged.keys() - self._unopened.keys())

    def is_created(self, topic: str, index: int) -> bool:
        """Whether the partition has been given a log: on a single node, internal topics get theirs when first needed."""
        return self.led is not self.logs or self._catalog.is_created(topic, index)

    async def delete(self, name: str, indexes: Sequence[int]) -> None:
        """Closes logs of a topic and removes them from disk, durably, whatever of them is there. Raises ``OSError``."""
        async with self._reopening:
            for index in indexes:
                self._damaged.pop((name, index), None)
                self._unopened.pop((name, index), None)
        for index in indexes:
            opened = self.logs.pop((name, index), None)
            if opened is not None:
                await opened.discard()
        for chunk in _chunks([directory_of(name, index) for index in indexes], _MADE_AT_ONCE):
            await self._change(remove_logs, self._disk.storage, chunk)
        if self._disk.reserve.spent:
            await self._disk.tend(self._disk.reserve.restore)

    async def flush(self) -> bool:
        """Waits until everything appended so far is on disk and acknowledged; False if that of some log is not."""
        flushed = True
        for opened in tuple(self.logs.values()):
            try:
                await opened.flush()
            except LogError as error:
                flushed = False
                log.error("log_not_flushed", directory=opened.directory, error=str(error))
        return flushed

    async def close(self) -> None:
        """Flushes and closes every log, some at a time: a file system with a journal serves their syncs with few commits."""
        failed: BaseException | None = None
        for some in _chunks(tuple(self.logs.values()), _CLOSED_AT_ONCE):
            for closed in await asyncio.gather(*(opened.close() for opened in some), return_exceptions=True):
                failed = failed or closed  # it keeps no other log from being closed
        self.logs.clear()
        if failed is not None:
            raise failed

    async def _finish_deletion(self, topic_id: str, name: str, count: int) -> None:
        """A deletion that the disk still refuses keeps its name from being used again; all else is served."""
        living = self._catalog.topics.get(name)
        try:
            await self.delete(name, range(len(living.partitions) if living else 0, count))
            await self._catalog.end_deletion(topic_id)
        except OSError as error:
            log.warning("deleted_topic_not_removed", topic=name, error=str(error))

    async def _open(
        self,
        partitions: Sequence[tuple[Topic, int]],
        open_one: Callable[[Topic, int], Awaitable[PartitionLog | None]],
    ) -> None:
        for some in _chunks(partitions, _OPENED_AT_ONCE):
            opening = [open_one(topic, index) for topic, index in some]
            # All are waited for even if one fails: none may come to life after the failure has been dealt with.
            for opened in await asyncio.gather(*opening, return_exceptions=True):
                if isinstance(opened, BaseException):
                    raise opened
                if opened is not None:
                    self.producer_limit.begun(len(opened.producers))

    async def _change(self, function: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        """Runs what makes or removes directories. The process ends when it is unknown what is on disk then."""
        try:
            return await self._disk.tend(function, *args, **kwargs)
        except WriteInDoubtError as error:
            self._on_fatal(f"partition directories could not be changed: {error}. What is on disk is unknown")
            raise


def directory_of(topic: str, index: int) -> str:
    """The directory of a partition, relative to the data directory."""
    return f"{topic}-{index}"


def _chunks(items: Sequence[T], size: int) -> Iterator[Sequence[T]]:
    return (items[start : start + size] for start in range(0, len(items), size))
