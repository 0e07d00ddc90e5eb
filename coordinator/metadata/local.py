"""The local metadata store: an authority, behind a snapshot and a log of the changes since, as ``encoding`` describes them.

A transaction is decided, written down, and then true. Leases do not end by time, as one process has the store; they end with
it, and what is left of them the next start removes.

A change costs one line and one sync, however much metadata there is. When the log would outgrow the snapshot, the next
change writes a new snapshot instead, and the log begins anew: that costs as much as all metadata, once in so many bytes of
changes.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from typing import Final

from coordinator.filesystem.executor import Disk
from coordinator.filesystem.storage import File, Storage, WriteInDoubtError, in_doubt
from coordinator.log.directories import is_partition_directory
from coordinator.log_output import get_logger
from coordinator.metadata.authority import Authority, Compare, Delta, KeyValue, Operation
from coordinator.metadata.encoding import (
    FORMAT,
    LOG,
    SNAPSHOT,
    WITH_CLUSTER_FORMAT,
    Metadata,
    MetadataDamagedError,
    decode_snapshot,
    encode_change,
    encode_entry,
    encode_snapshot,
    replay,
)
from coordinator.metadata.keys import CLUSTER_FORMAT
from coordinator.metadata.store import TIMEOUT_MS, Lease, OnDelta, Stop
from coordinator.metadata.watchers import Watchers

log = get_logger()

_MAX_OPERATIONS: Final = 2**21
"""Of a transaction: what one request creates, which ``max_partitions`` bounds, is one line of the log."""


class LocalMetadataStore:
    """Implements ``MetadataStore`` for one node. Make one with ``await LocalMetadataStore.open(...)``."""

    def __init__(self, disk: Disk, on_fatal: Callable[[str], None], files: _Files, metadata: Metadata) -> None:
        self._disk = disk
        self._on_fatal = on_fatal
        self._in_doubt: WriteInDoubtError | None = None
        self._files = files
        self._cluster_id = metadata.cluster_id
        self._authority = Authority(metadata.keys.values(), metadata.revision, max_operations=_MAX_OPERATIONS)
        self._watchers = Watchers()
        self._lock = asyncio.Lock()

    @classmethod
    async def open(
        cls, disk: Disk, new_cluster_id: Callable[[], str], on_fatal: Callable[[str], None]
    ) -> LocalMetadataStore:
        """The store in the data directory, made if the directory holds no partitions either.

        ``on_fatal`` is called with the reason when it is unknown what is on disk; it must end the process.
        Raises ``MetadataDamagedError`` and ``OSError``.
        """
        if not await disk.run(disk.storage.exists, SNAPSHOT):
            await disk.run(_make, disk.storage, new_cluster_id())
        files = _Files(disk.storage)
        store = cls(disk, on_fatal, files, await disk.run(files.load))
        for lease in store._authority.due(0):  # of the process before
            await store.revoke(lease)
        return store

    @property
    def cluster_id(self) -> str:
        """The identity of the cluster, drawn when the data directory was made."""
        return self._cluster_id

    @property
    def revision(self) -> int:
        """The revision of the newest change."""
        return self._authority.revision

    def get(self, key: str) -> KeyValue | None:
        """See ``MetadataStore.get``."""
        return self._authority.get(key)

    def range(self, prefix: str) -> list[KeyValue]:
        """See ``MetadataStore.range``."""
        return self._authority.range(prefix)

    async def transaction(
        self, compare: Sequence[Compare], operations: Sequence[Operation], *, timeout_ms: int = TIMEOUT_MS
    ) -> int | None:
        """See ``MetadataStore.transaction``; it waits for the disk, however long that takes.

        Raises ``OSError`` when the disk refuses, and nothing has changed then; ``WriteInDoubtError`` when it failed so late
        that it is unknown, after which every transaction is refused. A caller that is cancelled meanwhile finds it carried
        out or not at all.
        """
        async with self._lock:
            delta = self._authority.decide(compare, operations)
            await self._carry_out(delta)
        return None if delta is None else delta.revision

    def watch(self, prefix: str, on_delta: OnDelta) -> Stop:
        """See ``MetadataStore.watch``."""
        return self._watchers.add(prefix, on_delta)

    async def catch_up(self, *, timeout_ms: int = TIMEOUT_MS) -> int:
        """See ``MetadataStore.catch_up``: what is written is known."""
        return self.revision

    async def grant(self, ttl_ms: int, *, timeout_ms: int = TIMEOUT_MS) -> Lease:
        """See ``MetadataStore.grant``; it lasts as long as the process."""
        return Lease(self, self._authority.grant(ttl_ms, now_ms=0))

    async def renew(self, lease: int) -> bool:
        """See ``Lease.renew``."""
        return self._authority.renew(lease, now_ms=0)

    async def revoke(self, lease: int) -> None:
        """See ``Lease.revoke``."""
        async with self._lock:
            await self._carry_out(self._authority.end(lease))
            self._authority.revoke(lease)

    async def close(self) -> None:
        """Leaves a snapshot and an empty log: then each byte of the metadata is covered by one checksum.

        Raises ``WriteInDoubtError`` when the disk fails; on a disk that refuses, the log stays as it is.
        """
        async with self._lock:
            if self._in_doubt is None:
                await self._disk.run(self._files.compact, self.revision)

    async def _carry_out(self, delta: Delta | None) -> None:
        """Writes down what was decided and makes it true; hold the lock."""
        if self._in_doubt is not None:
            raise self._in_doubt
        if delta is None or not delta.changes:
            return
        written: list[bool] = []
        encoded = {key: None if after is None else encode_entry(after) for key, _, after in delta.changes}

        def write() -> None:
            try:
                self._files.write(delta.revision, encoded)
            except OSError as error:  # what deletes is what helps against a full disk
                if all(encoded.values()) or not self._disk.reserve.release_for(error):
                    raise
                self._files.write(delta.revision, encoded)
            written.append(True)

        try:
            await self._disk.run(write)
        except WriteInDoubtError as error:
            self._in_doubt = error
            self._on_fatal(f"the metadata could not be written: {error}")
            raise
        finally:
            if written:  # also when the caller was cancelled: memory follows the disk
                self._authority.take(delta)
                self._authority.compact(delta.revision)
                self._watchers.tell(delta)


class _Files:
    """The snapshot and the log of one data directory. All methods block; one is called at a time."""

    def __init__(self, storage: Storage) -> None:
        self._storage = storage
        self._cluster_id = ""
        self._entries: dict[str, bytes] = {}
        """All keys, encoded, so that a snapshot encodes none of them again."""
        self._snapshot_bytes = 0
        """The size of the snapshot; 0 while it has the format of an older version."""
        self._log_bytes = 0

    def load(self) -> Metadata:
        """What is on disk, from here on durably. A line of the log that was never acknowledged is cut off."""
        self._storage.sync_directory("")  # a process that was killed may have left a snapshot whose name can be lost
        content = self._storage.read_file(SNAPSHOT)
        metadata = decode_snapshot(content)
        if metadata.format >= FORMAT:
            self._snapshot_bytes = len(content)
        elif not self._storage.exists(LOG):
            _make_log(self._storage)
        self._load_log(metadata)
        self._cluster_id = metadata.cluster_id
        self._entries = {key: encode_entry(entry) for key, entry in metadata.keys.items()}
        return metadata

    def _load_log(self, metadata: Metadata) -> None:
        try:
            file = self._storage.open(LOG)
        except FileNotFoundError as error:
            raise MetadataDamagedError(f"{LOG} is missing beside {SNAPSHOT}: restore both from one backup") from error
        try:
            size = file.size()
            self._log_bytes = replay(file.read(0, size), metadata)
            if self._log_bytes < size:
                log.warning("metadata_log_torn_tail_cut", position=self._log_bytes, bytes_cut=size - self._log_bytes)
                file.truncate(self._log_bytes)
            if size:  # what was read may be in the machine's memory only: from here on it counts as durable
                _sync(file)
        finally:
            file.close()

    def write(self, revision: int, changes: Mapping[str, bytes | None]) -> None:
        """Makes a change durable. Raises ``WriteInDoubtError`` as ``Storage.write_file``; after another ``OSError`` nothing
        has changed."""
        line = encode_change(revision, changes)
        entries = self._entries
        if CLUSTER_FORMAT in changes:  # the snapshot has to say so, or an older version would not see the change
            self._snapshot_bytes = 0
        if not (self._is_due(line) and self._replaced(revision, {**entries, **changes})):
            self._append(line)
        for key, entry in changes.items():
            if entry is None:
                entries.pop(key, None)
            else:
                entries[key] = entry

    def compact(self, revision: int) -> None:
        """Writes a snapshot unless it has everything already. Raises ``WriteInDoubtError``."""
        if self._log_bytes:
            self._replaced(revision, self._entries)

    def _is_due(self, line: bytes) -> bool:
        """Whether the log would outgrow the snapshot."""
        return self._log_bytes + len(line) > self._snapshot_bytes

    def _replaced(self, revision: int, entries: Mapping[str, bytes | None]) -> bool:
        """Writes a snapshot and empties the log; False when the disk refuses and the log can take the change."""
        version = WITH_CLUSTER_FORMAT if entries.get(CLUSTER_FORMAT) else FORMAT
        encoded = [entry for _, entry in sorted(entries.items()) if entry]
        content = encode_snapshot(self._cluster_id, revision, encoded, version)
        try:
            self._storage.write_file(SNAPSHOT, content)
        except WriteInDoubtError:
            raise
        except OSError as error:
            if not self._snapshot_bytes:
                raise  # the version that wrote the snapshot would not see the log
            log.warning("metadata_snapshot_not_written", error=str(error))
            return False
        self._snapshot_bytes = len(content)
        self._empty_log()
        return True

    def _empty_log(self) -> None:
        """A log that cannot be emptied holds what the snapshot has: the next start skips it."""
        if not self._log_bytes:
            return
        try:
            file = self._storage.open(LOG)
        except OSError as error:
            log.warning("metadata_log_not_emptied", error=str(error))
            return
        try:
            self._cut(file, 0)
            self._log_bytes = 0
        finally:
            file.close()

    def _append(self, line: bytes) -> None:
        file = self._storage.open(LOG)
        try:
            try:
                file.append([line])
            except OSError:
                self._cut(file, self._log_bytes)
                raise
            _sync(file)
            self._log_bytes += len(line)
        finally:
            file.close()

    def _cut(self, file: File, size: int) -> None:
        """Durably: a line that is written over what is left of another must not be mixed with it."""
        try:
            file.truncate(size)
        except OSError as error:
            raise in_doubt(LOG, error) from error
        _sync(file)


def _make(storage: Storage, cluster_id: str) -> None:
    """Makes the files of a new data directory; the snapshot last, as it is what says that there is one."""
    orphans = [name for name in storage.list("") if is_partition_directory(name)]
    if orphans:
        raise MetadataDamagedError(
            f"{SNAPSHOT} is missing, but there are {len(orphans)} directories of partitions, such as {orphans[0]}: "
            f"restore {SNAPSHOT} and {LOG} from a backup, or use an empty data directory"
        )
    _make_log(storage)
    storage.write_file(SNAPSHOT, encode_snapshot(cluster_id, 0, []))


def _make_log(storage: Storage) -> None:
    file = storage.open(LOG, create=True)
    try:
        if file.size():
            raise MetadataDamagedError(
                f"{SNAPSHOT} is missing, but {LOG} holds changes of it: restore both from one backup, "
                "or use an empty data directory"
            )
    finally:
        file.close()
    storage.sync_directory("")


def _sync(file: File) -> None:
    try:
        file.sync()
    except OSError as error:
        raise in_doubt(LOG, error) from error
