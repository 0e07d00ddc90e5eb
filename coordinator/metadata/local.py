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
from coordinator.log.directories import is_partition_directory
from coordinator.metadata.store import Compare, KeyValue, Operation, Put
from coordinator.storage import WriteInDoubtError

PATH: Final = "metadata.json"
FORMAT: Final = 1


class MetadataDamagedError(Exception):
    """The metadata file cannot be trusted, or another version of Cohort wrote it; the text says which."""


class LocalMetadataStore:
    """Implements ``MetadataStore`` for one node. Make one with ``await LocalMetadataStore.open(...)``."""

    def __init__(
        self,
        disk: Disk,
        on_fatal: Callable[[str], None],
        cluster_id: str,
        revision: int,
        keys: dict[str, KeyValue],
    ) -> None:
        self._disk = disk
        self._on_fatal = on_fatal
        self._in_doubt: WriteInDoubtError | None = None
        self._cluster_id = cluster_id
        self._revision = revision
        self._keys = keys
        self._watches: list[tuple[str, Callable[[int], None]]] = []
        self._lock = asyncio.Lock()

    @classmethod
    async def open(
        cls, disk: Disk, new_cluster_id: Callable[[], str], on_fatal: Callable[[str], None]
    ) -> LocalMetadataStore:
        """The store in the data directory, made if the directory holds no partitions either.

        ``on_fatal`` is called with the reason when nobody can know any more what is on disk; it must end the process.
        Raises ``MetadataDamagedError`` and ``OSError``.
        """
        storage = disk.storage
        if await disk.run(storage.exists, PATH):
            return cls(disk, on_fatal, *_decode(await disk.run(storage.read_file, PATH)))
        orphans = [name for name in await disk.run(storage.list, "") if is_partition_directory(name)]
        if orphans:
            raise MetadataDamagedError(
                f"{PATH} is missing, but there are {len(orphans)} directories of partitions, such as {orphans[0]}: "
                f"restore {PATH} from a backup, or use an empty data directory"
            )
        store = cls(disk, on_fatal, new_cluster_id(), 0, {})
        await store._write(0, {})
        return store

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
        """See ``MetadataStore.transaction``.

        Raises ``OSError`` when the disk refuses, and nothing has changed then; ``WriteInDoubtError`` when it failed so late
        that nobody knows, after which every transaction is refused. A caller that is cancelled meanwhile finds it carried
        out or not at all.
        """
        async with self._lock:
            if self._in_doubt is not None:
                raise self._in_doubt
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
        return revision

    def watch(self, prefix: str, on_change: Callable[[int], None]) -> Callable[[], None]:
        """See ``MetadataStore.watch``."""
        watch = (prefix, on_change)
        self._watches.append(watch)
        return lambda: self._watches.remove(watch)

    async def _write(self, revision: int, keys: dict[str, KeyValue]) -> None:
        written: list[bool] = []

        def write() -> None:
            self._disk.storage.write_file(PATH, _encode(self._cluster_id, revision, keys))
            written.append(True)

        try:
            await self._disk.run(write)
        except WriteInDoubtError as error:
            self._in_doubt = error
            self._on_fatal(f"the metadata could not be written: {error}")
            raise
        finally:
            if written:  # also when the caller was cancelled: memory follows the disk
                self._take(revision, keys)

    def _take(self, revision: int, keys: dict[str, KeyValue]) -> None:
        before, self._keys, self._revision = self._keys, keys, revision
        changed = [key for key in {**before, **keys} if before.get(key) != keys.get(key)]
        for prefix, on_change in tuple(self._watches):
            if any(key.startswith(prefix) for key in changed):
                on_change(revision)


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
