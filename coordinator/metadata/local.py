"""The local metadata store: one file, replaced as a whole by each transaction.

The file is one line of JSON with format, checksum and cluster id, and one line of JSON with everything. Metadata is
small and changes seldom; a whole file swapped by rename has no tail to tear and nothing to replay, so it is either the
old or the new state after a power cut.
"""

from __future__ import annotations

import asyncio
import json
import zlib
from collections.abc import Callable, Sequence
from typing import Any, Final

from coordinator.disk import Disk
from coordinator.metadata.store import Compare, Delete, KeyValue, Operation, Put

PATH: Final = "metadata.json"
FORMAT: Final = 1


class MetadataDamagedError(Exception):
    """The metadata file cannot be trusted, or another version of Cohort wrote it; the text says which."""


class LocalMetadataStore:
    """Implements ``MetadataStore`` for one node. Make one with ``await LocalMetadataStore.open(...)``."""

    def __init__(self, disk: Disk, cluster_id: str, revision: int, keys: dict[str, KeyValue]) -> None:
        self._disk = disk
        self._cluster_id = cluster_id
        self._revision = revision
        self._keys = keys
        self._watches: list[tuple[str, Callable[[int], None]]] = []
        self._lock = asyncio.Lock()

    @classmethod
    async def open(cls, disk: Disk, new_cluster_id: Callable[[], str]) -> LocalMetadataStore:
        """The store in the data directory, made if there is none. Raises ``MetadataDamagedError``."""
        storage = disk.storage
        if not await disk.run(storage.exists, PATH):
            store = cls(disk, new_cluster_id(), 0, {})
            await store._write(0, {})
            return store
        return cls(disk, *_decode(await disk.run(storage.read_file, PATH)))

    @property
    def cluster_id(self) -> str:
        """The identity of the cluster, drawn when the data directory was made."""
        return self._cluster_id

    @property
    def revision(self) -> int:
        """The revision of the newest change."""
        return self._revision

    def range(self, prefix: str) -> list[KeyValue]:
        """Every key that begins with ``prefix``, sorted by key."""
        return [self._keys[key] for key in sorted(self._keys) if key.startswith(prefix)]

    async def transaction(self, compare: Sequence[Compare], operations: Sequence[Operation]) -> int | None:
        """See ``MetadataStore.transaction``. Raises ``OSError`` when the disk refuses; then nothing has changed."""
        async with self._lock:
            for condition in compare:
                known = self._keys.get(condition.key)
                if (known.mod_revision if known is not None else 0) != condition.mod_revision:
                    return None
            revision = self._revision + 1
            keys = dict(self._keys)
            for operation in operations:
                if isinstance(operation, Put):
                    keys[operation.key] = KeyValue(operation.key, operation.value, revision)
                else:
                    keys.pop(operation.key, None)
            await self._write(revision, keys)
            self._revision, self._keys = revision, keys
        for prefix, on_change in tuple(self._watches):
            if any(operation.key.startswith(prefix) for operation in operations):
                on_change(revision)
        return revision

    def watch(self, prefix: str, on_change: Callable[[int], None]) -> Callable[[], None]:
        """See ``MetadataStore.watch``."""
        watch = (prefix, on_change)
        self._watches.append(watch)
        return lambda: self._watches.remove(watch)

    async def _write(self, revision: int, keys: dict[str, KeyValue]) -> None:
        content = _encode(self._cluster_id, revision, keys)
        await self._disk.run(self._disk.storage.write_file, PATH, content)


def _encode(cluster_id: str, revision: int, keys: dict[str, KeyValue]) -> bytes:
    body = json.dumps({key: [entry.mod_revision, dict(entry.value)] for key, entry in sorted(keys.items())}).encode()
    head = {
        "format": FORMAT,
        "cluster_id": cluster_id,
        "revision": revision,
        "crc32": _checksum(cluster_id, revision, body),
    }
    return json.dumps(head).encode() + b"\n" + body + b"\n"


def _checksum(cluster_id: object, revision: object, body: bytes) -> int:
    return zlib.crc32(body, zlib.crc32(f"{cluster_id} {revision}".encode()))


def _decode(content: bytes) -> tuple[str, int, dict[str, KeyValue]]:
    try:
        first, body = content.split(b"\n")[:2]
        head: dict[str, Any] = json.loads(first)
        version = head["format"]
    except (ValueError, KeyError, TypeError) as error:
        raise MetadataDamagedError(f"{PATH} is damaged: its first line does not parse ({error})") from error
    if version != FORMAT:
        raise MetadataDamagedError(
            f"{PATH} has format {version}, this version of Cohort reads format {FORMAT}: start the version that wrote it"
        )
    if head.get("crc32") != _checksum(head.get("cluster_id"), head.get("revision"), body):
        raise MetadataDamagedError(f"{PATH} is damaged: its checksum does not match; restore it from a backup")
    entries = json.loads(body)
    return (
        head["cluster_id"],
        head["revision"],
        {key: KeyValue(key, value, rev) for key, (rev, value) in entries.items()},
    )


__all__ = ["FORMAT", "PATH", "Compare", "Delete", "LocalMetadataStore", "MetadataDamagedError"]
