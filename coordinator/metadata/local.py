"""The local metadata store: one file, replaced as a whole by each transaction.

The file is one line of JSON with format, checksum and cluster id, and one line of JSON with everything. Metadata is small
and changes seldom, and what a change leaves alone is not encoded again; a whole file swapped by rename has no tail to tear
and nothing to replay, so it is either the old or the new state after a power cut.
"""

from __future__ import annotations

import asyncio
import json
import zlib
from bisect import bisect_left
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

from coordinator.filesystem.executor import Disk
from coordinator.filesystem.storage import WriteInDoubtError
from coordinator.log.directories import is_partition_directory
from coordinator.metadata.store import Compare, KeyValue, OnChange, Operation, Put

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
        self._sorted = sorted(keys)
        self._encoded = {key: _entry(keys[key]) for key in self._sorted}  # so that a change encodes what it changes
        self._watches: list[tuple[str, OnChange]] = []
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
        found = []
        for position in range(bisect_left(self._sorted, prefix), len(self._sorted)):
            key = self._sorted[position]
            if not key.startswith(prefix):
                break
            found.append(self._keys[key])
        return found

    def get(self, key: str) -> KeyValue | None:
        """See ``MetadataStore.get``."""
        return self._keys.get(key)

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
            changes: dict[str, KeyValue | None] = {}
            for operation in operations:
                if isinstance(operation, Put):
                    changes[operation.key] = KeyValue(operation.key, operation.value, revision)
                else:
                    changes[operation.key] = None
            await self._write(revision, changes)
        return revision

    def watch(self, prefix: str, on_change: OnChange) -> Callable[[], None]:
        """See ``MetadataStore.watch``."""
        watch = (prefix, on_change)
        self._watches.append(watch)
        return lambda: self._watches.remove(watch)

    async def _write(self, revision: int, changes: Mapping[str, KeyValue | None]) -> None:
        written: list[bool] = []
        encoded = {key: None if entry is None else _entry(entry) for key, entry in changes.items()}

        def write() -> None:
            content = self._content(revision, encoded)
            try:
                self._disk.storage.write_file(PATH, content)
            except OSError as error:  # what deletes is what helps against a full disk
                if all(encoded.values()) or not self._disk.reserve.release_for(error):
                    raise
                self._disk.storage.write_file(PATH, content)
            written.append(True)

        try:
            await self._disk.run(write)
        except WriteInDoubtError as error:
            self._in_doubt = error
            self._on_fatal(f"the metadata could not be written: {error}")
            raise
        finally:
            if written:  # also when the caller was cancelled: memory follows the disk
                self._take(revision, changes, encoded)

    def _content(self, revision: int, encoded: Mapping[str, bytes | None]) -> bytes:
        """The file as it is after the changes."""
        pieces = {**self._encoded, **encoded}
        order = self._sorted if pieces.keys() == self._encoded.keys() else sorted(pieces)
        body = b"{" + b", ".join([piece for key in order if (piece := pieces[key]) is not None]) + b"}"
        head = {
            "format": FORMAT,
            "cluster_id": self._cluster_id,
            "revision": revision,
            "crc32": _checksum(self._cluster_id, revision, body),
        }
        return json.dumps(head).encode() + b"\n" + body + b"\n"

    def _take(self, revision: int, changes: Mapping[str, KeyValue | None], encoded: Mapping[str, bytes | None]) -> None:
        self._revision = revision
        changed = [key for key in sorted(changes) if changes[key] != self._keys.get(key)]
        known = len(self._keys)
        for key in changed:
            entry, piece = changes[key], encoded[key]
            if entry is None or piece is None:
                del self._keys[key], self._encoded[key]
            else:
                self._keys[key], self._encoded[key] = entry, piece
        if len(self._keys) != known or any(changes[key] is None for key in changed):
            self._sorted = sorted(self._keys)
        for prefix, on_change in tuple(self._watches):
            touched = [key for key in changed if key.startswith(prefix)]
            if touched:
                on_change(revision, touched)


def _entry(entry: KeyValue) -> bytes:
    """One key as the file has it."""
    return f"{json.dumps(entry.key)}: {json.dumps([entry.mod_revision, dict(entry.value)])}".encode()


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
