"""Which logs this data directory has, in the file ``inventory``: one that is in it and not on disk is lost, not new.

A log is in it, durably, before it is served, and no longer before it is removed. The file is replaced as a whole. A data
directory of a version that had none gets it from its directories, once.
"""

from __future__ import annotations

import asyncio
import json
import zlib
from collections.abc import Iterable
from typing import Any, Final

from coordinator.filesystem.executor import Disk
from coordinator.filesystem.storage import Storage
from coordinator.log.directories import is_partition_directory
from coordinator.logs.topic_ids import SUFFIX
from coordinator.metadata.encoding import MetadataDamagedError

PATH: Final = "inventory"
FORMAT: Final = 1

Log = tuple[str, int]
"""Topic id and number of a partition."""


class Inventory:
    """The file and its content. Make one with ``await Inventory.read(disk)``."""

    def __init__(self, disk: Disk, logs: Iterable[Log]) -> None:
        self._disk = disk
        self._logs = set(logs)
        self._changes = self._written = 0
        """How many changes there were, and with how many of them the file was written."""
        self._writing = asyncio.Lock()

    @classmethod
    async def read(cls, disk: Disk) -> Inventory:
        """The inventory of the data directory, which is made when there is none.

        Raises ``MetadataDamagedError`` and ``OSError``.
        """
        return cls(disk, await disk.run(_read, disk.storage))

    @property
    def logs(self) -> frozenset[Log]:
        """All that is in it."""
        return frozenset(self._logs)

    def has(self, topic_id: str, index: int) -> bool:
        """Whether a log was made here, and not removed."""
        return (topic_id, index) in self._logs

    async def add(self, logs: Iterable[Log]) -> None:
        """Notes logs that were made, durably. Raises ``OSError``; then they are not in it, or ``WriteInDoubtError``."""
        fresh = set(logs) - self._logs
        if not fresh:
            await self._written_up_to(self._changes)  # another may still be writing them
            return
        self._logs |= fresh
        try:
            await self._changed()
        except BaseException:
            self._logs -= fresh
            self._changes += 1
            raise

    async def remove(self, logs: Iterable[Log]) -> None:
        """Notes that logs are about to be removed, durably. Raises ``OSError``; then they are in it still."""
        gone = set(logs) & self._logs
        if not gone:
            await self._written_up_to(self._changes)
            return
        self._logs -= gone
        try:
            await self._changed()
        except BaseException:
            self._logs |= gone
            self._changes += 1
            raise

    async def _changed(self) -> None:
        self._changes += 1
        await self._written_up_to(self._changes)

    async def _written_up_to(self, change: int) -> None:
        """Returns once the file has this change and all before: those that wait meanwhile share one write."""
        async with self._writing:
            if self._written < change:
                changes = self._changes
                await self._disk.run(self._disk.storage.write_file, PATH, encode(self._logs))
                self._written = changes


def encode(logs: Iterable[Log]) -> bytes:
    """``inventory``: one line of JSON, the numbers of partitions by topic id."""
    by_topic: dict[str, list[int]] = {}
    for topic_id, index in sorted(logs):
        by_topic.setdefault(topic_id, []).append(index)
    return json.dumps({"format": FORMAT, "crc32": _checksum(by_topic), "logs": by_topic}).encode() + b"\n"


def decode(content: bytes) -> set[Log]:
    """Reads ``inventory``. Raises ``MetadataDamagedError``."""
    try:
        fields: dict[str, Any] = json.loads(content)
        version, by_topic = fields["format"], fields.get("logs")
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        raise _damaged(f"it does not parse ({error})") from error
    if version != FORMAT:
        raise MetadataDamagedError(
            f"{PATH} has format {version}, this version of Cohort reads format {FORMAT}: start the version that wrote it"
        )
    if not isinstance(by_topic, dict) or fields.get("crc32") != _checksum(by_topic):
        raise _damaged("its checksum does not match")
    return {(topic_id, index) for topic_id, indexes in by_topic.items() for index in indexes}


def _read(storage: Storage) -> set[Log]:
    if storage.exists(PATH):
        storage.sync_directory("")  # a process that was killed may have left a file whose name can be lost
        return decode(storage.read_file(PATH))
    logs = set(_logs_on_disk(storage))
    storage.write_file(PATH, encode(logs))
    return logs


def _logs_on_disk(storage: Storage) -> Iterable[Log]:
    for name in storage.list(""):
        if is_partition_directory(name):
            for file in storage.list(name):
                if file.endswith(SUFFIX):
                    yield file.removesuffix(SUFFIX), int(name.rpartition("-")[2])


def _checksum(by_topic: dict[str, list[int]]) -> int:
    return zlib.crc32(json.dumps(by_topic).encode())


def _damaged(reason: str) -> MetadataDamagedError:
    return MetadataDamagedError(
        f"{PATH} is damaged: {reason}. Restore it from a backup; or remove it, and node.json with it: then the directory "
        "counts as new, and what is missing is copied from other nodes"
    )
