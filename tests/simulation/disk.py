"""A disk that keeps what was synced and, after a power cut, little else.

A file's bytes are durable after ``sync``, a name after ``sync_directory`` of its directory. Until then both live in memory
only: a killed process leaves them, a power cut takes them, all but what a seeded draw says reached the disk: nothing, a
prefix, or blocks in any order with zeros between. Each storage call may be the one at which the host ends (``end_after``).
"""

from __future__ import annotations

import errno
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from random import Random
from typing import Final

from coordinator.filesystem.storage import TEMPORARY_SUFFIX, DataDirectoryLockedError, File, Lock, in_doubt
from coordinator.log.segment import CLEANED_SUFFIX
from tests.simulation.loop import Process

_BLOCK: Final = 64
"""Bytes that survive or are lost together: smaller than real blocks, since simulated files are small."""


class HostEnded(BaseException):
    """The host or the process ended within a storage call; nothing after it happened."""


@dataclass(slots=True, eq=False)
class Inode:
    """A file's bytes as programs see them, and as the disk holds them."""

    live: bytearray = field(default_factory=bytearray)
    durable: bytes = b""
    suspect: bool = False
    """A sync failed: what memory holds beyond the durable bytes may be gone when it is read again."""
    cuts: int = 0
    """How often something else than an append has changed the bytes."""

    def settle(self, random: Random) -> None:
        """What is not durable is gone, or became durable after all."""
        self.durable = self.after_power_cut(random)
        self.live = bytearray(self.durable)
        self.suspect = False
        self.cuts += 1

    def after_power_cut(self, random: Random) -> bytes:
        """What is left of the file."""
        if self.live == self.durable:
            return self.durable
        live, durable = bytes(self.live), self.durable
        common = next((i for i, (a, b) in enumerate(zip(live, durable, strict=False)) if a != b), None)
        start = min(len(live), len(durable)) if common is None else common
        draw = random.random()
        if draw < 0.3:
            return durable
        if draw < 0.45 or len(live) < len(durable):
            return live
        if draw < 0.7:
            return live[: start + int(random.random() * (len(live) - start + 1))]
        left = bytearray(live)
        for position in range(start - start % _BLOCK, len(live), _BLOCK):
            if random.random() < 0.5:
                lost = range(max(position, start), min(position + _BLOCK, len(live)))
                for index in lost:
                    left[index] = durable[index] if index < len(durable) else 0
        return bytes(left)


@dataclass(slots=True, eq=False)
class Directory:
    """Names as programs see them and as the disk holds them, and the changes between in order."""

    live: dict[str, Inode | Directory] = field(default_factory=dict)
    durable: dict[str, Inode | Directory] = field(default_factory=dict)
    changes: list[dict[str, Inode | Directory]] = field(default_factory=list)

    def set(self, names: dict[str, Inode | Directory]) -> None:
        """Changes the names, in memory for the time being."""
        self.live = names
        self.changes.append(names)


class SimDisk:
    """The disk of one host. It outlives processes and power cuts."""

    def __init__(self, random: Random) -> None:
        self.random = random
        self.capacity: int | None = None
        self.fail_writes = 0
        """How many of the next writes fail with EIO."""
        self.fail_syncs = 0
        """How many of the next syncs fail with EIO."""
        self.fail_reads = 0
        """How many of the next reads fail with EIO."""
        self.unreadable: str | None = None
        """What the paths begin with whose reads fail with EIO."""
        self.errors = 0
        """How many calls have failed with EIO."""
        self.slow_s = 0.0
        """Additional seconds of every call at most, for a disk that hangs."""
        self.end_after: int | None = None
        """So many more calls and the host ends within one."""
        self.end_in_exchange = False
        """The host ends while it writes or exchanges the next compacted segment."""
        self.on_end: Callable[[], None] = lambda: None
        self.power_cuts = 0
        self.refused = 0
        """How many calls have found the disk full."""
        self.not_replaced: set[str] = set()
        """Files that were to be replaced when that was last tried, and were not: the disk refused it."""
        self.root = Directory()
        self.lock_holder: tuple[str, Process] | None = None

    def latency_s(self) -> tuple[float, float]:
        """See ``loop.DiskCalls``."""
        slow = self.slow_s * self.random.random() if self.slow_s else 0.0
        return self.random.random() * 0.001 + slow, self.random.random() * 0.0002

    def is_troubled(self) -> bool:
        """Whether a fault of the disk is under way."""
        counts = (self.fail_writes, self.fail_syncs, self.fail_reads, self.slow_s)
        lasting = (self.unreadable, self.capacity, self.end_after)
        return any(counts) or self.end_in_exchange or any(fault is not None for fault in lasting)

    def heal(self) -> None:
        """No fault is under way any more."""
        self.capacity, self.end_after, self.end_in_exchange, self.slow_s = None, None, False, 0.0
        self.unreadable = None
        self.fail_reads = self.fail_syncs = self.fail_writes = 0

    def power_cut(self) -> None:
        """What is not durable is lost, but for what the draw says reached the disk."""

        def settle(directory: Directory) -> None:
            names = directory.durable
            if directory.changes and self.random.random() < 0.5:
                names = directory.changes[int(self.random.random() * len(directory.changes))]
            directory.live, directory.durable = dict(names), dict(names)
            directory.changes.clear()
            for node in names.values():
                if isinstance(node, Directory):
                    settle(node)
                else:
                    node.settle(self.random)

        settle(self.root)
        self.power_cuts += 1
        self.lock_holder = None

    def process_ended(self) -> None:
        """The process is gone, memory is not: only what a failed sync left in doubt is settled now."""
        for _, inode in self.files():
            if inode.suspect:
                inode.settle(self.random)
        self.lock_holder = None

    def used(self) -> int:
        """Bytes of all files."""
        return sum(len(inode.live) for _, inode in self.files())

    def files(self) -> list[tuple[str, Inode]]:
        """Every file by path, sorted."""

        def walk(path: str, directory: Directory) -> Iterator[tuple[str, Inode]]:
            for name, node in sorted(directory.live.items(), key=lambda entry: entry[0]):
                if isinstance(node, Directory):
                    yield from walk(f"{path}{name}/", node)
                else:
                    yield path + name, node

        return list(walk("", self.root))

    def flip_bit(self, inode: Inode) -> int:
        """One bit of a file is not what was written; returns where."""
        position = int(self.random.random() * len(inode.live))
        self.flip_bit_at(inode, position)
        return position

    def flip_bit_at(self, inode: Inode, position: int) -> None:
        """One bit of a byte is not what was written."""
        bit = 1 << int(self.random.random() * 8)
        inode.live[position] ^= bit
        inode.cuts += 1
        if position < len(inode.durable):
            changed = bytearray(inode.durable)
            changed[position] ^= bit
            inode.durable = bytes(changed)


class SimStorage:
    """Implements ``coordinator.filesystem.storage.Storage`` for one process on one disk."""

    def __init__(self, disk: SimDisk, process: Process) -> None:
        self._disk = disk
        self._process = process

    def step(self, before_end: Callable[[], None] | None = None) -> None:
        """One call: the point at which a host may end, having done ``before_end``."""
        disk = self._disk
        if self._process.dead:
            raise HostEnded
        if disk.end_after is not None:
            disk.end_after -= 1
            if disk.end_after <= 0:
                disk.end_after = None
                if before_end is not None:
                    before_end()
                disk.on_end()
                raise HostEnded

    def open(self, path: str, create: bool = False) -> File:
        """See ``Storage.open``."""
        self.step()
        parent, name = self._parent(path)
        node = parent.live.get(name)
        if isinstance(node, Directory):
            raise IsADirectoryError(errno.EISDIR, "Is a directory", path)
        if node is None:
            if not create:
                raise FileNotFoundError(errno.ENOENT, "No such file or directory", path)
            self._room(1, path)
            node = Inode()
            parent.set({**parent.live, name: node})
            if self._disk.end_in_exchange and path.endswith(CLEANED_SUFFIX):
                self._disk.end_in_exchange = False
                self._disk.end_after = 1 + int(self._disk.random.random() * 16)
        return SimFile(self, self._disk, node, path)

    def list(self, path: str) -> list[str]:
        """See ``Storage.list``."""
        self.step()
        return sorted(self._directory(path).live)

    def exists(self, path: str) -> bool:
        """See ``Storage.exists``."""
        self.step()
        return self._node(path) is not None

    def make_directory(self, path: str) -> None:
        """See ``Storage.make_directory``."""
        self.step()
        parent = self._disk.root
        for part in path.split("/"):
            node = parent.live.get(part)
            if node is None:
                self._room(1, path)
                node = Directory()
                parent.set({**parent.live, part: node})
            if isinstance(node, Inode):
                raise NotADirectoryError(errno.ENOTDIR, "Not a directory", path)
            parent = node

    def remove(self, path: str) -> None:
        """See ``Storage.remove``."""
        self.step()
        parent, name = self._parent(path)
        if not isinstance(parent.live.get(name), Inode):
            raise FileNotFoundError(errno.ENOENT, "No such file or directory", path)
        _remove(parent, name)

    def remove_tree(self, path: str) -> None:
        """See ``Storage.remove_tree``; each entry goes by itself, so that the end may come between."""
        directory = self._node(path)
        if not isinstance(directory, Directory):
            return
        for name in sorted(directory.live):
            if isinstance(directory.live[name], Directory):
                self.remove_tree(f"{path}/{name}")
            else:
                self.step()
                _remove(directory, name)
        self.step()
        _remove(*self._parent(path))

    def rename(self, source: str, target: str) -> None:
        """See ``Storage.rename``."""
        self.step()
        parent, name = self._parent(source)
        other, new_name = self._parent(target)
        if name not in parent.live:
            raise FileNotFoundError(errno.ENOENT, "No such file or directory", source)
        assert parent is other, "production renames within one directory only"
        changed = {known: node for known, node in parent.live.items() if known != name}
        changed[new_name] = parent.live[name]
        parent.set(changed)

    def sync_directory(self, path: str) -> None:
        """See ``Storage.sync_directory``."""
        self.step()
        directory = self._directory(path)
        self.maybe_fail_sync(path)
        directory.durable = dict(directory.live)
        directory.changes.clear()

    def read_file(self, path: str) -> bytes:
        """See ``Storage.read_file``."""
        self.step()
        node = self._node(path)
        if not isinstance(node, Inode):
            raise FileNotFoundError(errno.ENOENT, "No such file or directory", path)
        self.maybe_fail_read(path)
        return bytes(node.live)

    def write_file(self, path: str, data: bytes) -> None:
        """See ``Storage.write_file``; the end may come between any two steps of it."""
        temporary = path + TEMPORARY_SUFFIX
        parent, name = self._parent(temporary)
        self.step()
        inode = Inode()
        parent.set({**parent.live, name: inode})
        file = SimFile(self, self._disk, inode, temporary)
        try:
            file.append([data])
        except OSError:
            _remove(parent, name)  # on a full disk it would keep the room that is left
            self._disk.not_replaced.add(path)
            raise
        file.sync()
        self.rename(temporary, path)
        self.sync_directory(path.rpartition("/")[0])
        self._disk.not_replaced.discard(path)

    def lock(self, path: str) -> Lock:
        """See ``Storage.lock``. A lock dies with its process."""
        self.step()
        holder = self._disk.lock_holder
        if holder is not None and not holder[1].dead:
            raise DataDirectoryLockedError(path, holder[1].name)
        self._disk.lock_holder = (path, self._process)
        return _SimLock(self._disk, self._process)

    def maybe_fail_sync(self, path: str) -> None:
        """Fails with EIO while a fault says so."""
        if self._disk.fail_syncs > 0:
            self._disk.fail_syncs -= 1
            self._disk.errors += 1
            raise in_doubt(path, OSError(errno.EIO, "Input/output error", path))

    def maybe_fail_read(self, path: str) -> None:
        """Fails with EIO while a fault says so."""
        unreadable = self._disk.unreadable
        if self._disk.fail_reads > 0:
            self._disk.fail_reads -= 1
        elif unreadable is None or not path.startswith(unreadable):
            return
        self._disk.errors += 1
        raise OSError(errno.EIO, "Input/output error", path)

    def _node(self, path: str) -> Inode | Directory | None:
        node: Inode | Directory | None = self._disk.root
        for part in path.split("/") if path else ():
            node = node.live.get(part) if isinstance(node, Directory) else None
        return node

    def _parent(self, path: str) -> tuple[Directory, str]:
        parent, _, name = path.rpartition("/")
        return self._directory(parent), name

    def _directory(self, path: str) -> Directory:
        node = self._node(path)
        if not isinstance(node, Directory):
            raise FileNotFoundError(errno.ENOENT, "No such file or directory", path)
        return node

    def _room(self, size: int, path: str) -> None:
        capacity = self._disk.capacity
        if capacity is not None and self._disk.used() + size > capacity:
            self._disk.refused += 1
            raise OSError(errno.ENOSPC, "No space left on device", path)


def _remove(directory: Directory, name: str) -> None:
    directory.set({known: node for known, node in directory.live.items() if known != name})


class SimFile:
    """An open file of one process."""

    def __init__(self, storage: SimStorage, disk: SimDisk, inode: Inode, path: str) -> None:
        self._path = path
        self._storage = storage
        self._disk = disk
        self._inode = inode

    def append(self, pieces: Sequence[bytes | memoryview]) -> None:
        """See ``File.append``; a part of it may be written when the host ends or the disk fails."""
        data = b"".join(pieces)
        disk, inode = self._disk, self._inode

        def write_a_part() -> None:
            inode.live += data[: int(disk.random.random() * (len(data) + 1))]

        self._storage.step(write_a_part)
        if disk.fail_writes > 0:
            disk.fail_writes -= 1
            write_a_part()
            self._disk.errors += 1
            raise OSError(errno.EIO, "Input/output error", self._path)
        if disk.capacity is not None and len(data) > (room := max(0, disk.capacity - disk.used())):
            inode.live += data[:room]
            disk.refused += 1
            raise OSError(errno.ENOSPC, "No space left on device", self._path)
        inode.live += data

    def read(self, position: int, length: int) -> bytes:
        """See ``File.read``."""
        self._storage.step()
        self._storage.maybe_fail_read(self._path)
        return bytes(self._inode.live[position : position + length])

    def sync(self) -> None:
        """See ``File.sync``."""
        self._storage.step()
        self._inode.suspect = self._disk.fail_syncs > 0
        self._storage.maybe_fail_sync(self._path)
        self._inode.durable = bytes(self._inode.live)

    def truncate(self, size: int) -> None:
        """See ``File.truncate``."""
        self._storage.step()
        del self._inode.live[size:]
        self._inode.cuts += 1

    def size(self) -> int:
        """See ``File.size``."""
        self._storage.step()
        return len(self._inode.live)

    def close(self) -> None:
        """See ``File.close``."""


class _SimLock:
    def __init__(self, disk: SimDisk, process: Process) -> None:
        self._disk = disk
        self._process = process

    def lost(self) -> str | None:
        """See ``Lock.lost``."""
        return None

    def release(self) -> None:
        """See ``Lock.release``."""
        holder = self._disk.lock_holder
        if holder is not None and holder[1] is self._process:
            self._disk.lock_holder = None
