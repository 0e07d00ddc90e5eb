"""The filesystem interface: what the daemon asks of a disk.

Everything the daemon keeps goes through ``Storage`` and ``File``; no module outside of ``coordinator.filesystem`` opens a
file. All methods block, so they are called through ``coordinator.filesystem.executor.Disk``. ``files.FileStorage`` keeps
real files. A simulated disk that loses unsynced writes, tears tails or fills up implements the same protocols, and the
daemon runs on it unchanged.

Durability, as POSIX gives it: bytes are durable after ``File.sync``; a name is durable after ``sync_directory`` of the
directory that holds it. ``Storage.write_file`` does both and replaces the whole file atomically.
"""

from __future__ import annotations

import errno
from collections.abc import Sequence
from typing import Final, Protocol

TEMPORARY_SUFFIX: Final = ".tmp"
"""What ``write_file`` appends to the name while it writes. A leftover is rubbish and may be removed."""

FULL: Final = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EFBIG})
"""What a disk says that takes no more: it is full, the user's quota is, or the largest size of a file is reached."""


class DataDirectoryLockedError(Exception):
    """Another process holds the lock, so this one must not touch the files."""

    def __init__(self, path: str, holder: str) -> None:
        super().__init__(
            f"{path} is locked by {holder}: one daemon may use a data directory. "
            "Stop that process or choose another directory"
        )
        self.path = path
        self.holder = holder


class WriteInDoubtError(OSError):
    """A file or a name was being changed, and it is unknown whether the old content or the new is on stable storage.

    Reading it again would not tell either, as what memory shows may never reach the disk. A caller that depends on the
    content ends the process; the next one finds out. Any other ``OSError`` of ``Storage.write_file`` is a refusal: the
    old content stands.
    """


class File(Protocol):
    """An open file that grows at its end. Every method may raise ``OSError``, which names the file."""

    def append(self, pieces: Sequence[bytes | memoryview]) -> None:
        """Writes all pieces at the end, in order.

        After an ``OSError`` any part of them may have been written: the caller truncates.
        """
        ...

    def read(self, position: int, length: int) -> bytes:
        """``length`` bytes from ``position``; fewer only at the end of the file."""
        ...

    def sync(self) -> None:
        """Returns once everything written, the size included, is on stable storage.

        Raises ``WriteInDoubtError`` for every failure: syncing again would not tell what is there.
        """
        ...

    def truncate(self, size: int) -> None:
        """Cuts the file to ``size`` bytes; durable only after ``sync``."""
        ...

    def size(self) -> int:
        """The size in bytes, unsynced writes included."""
        ...

    def close(self) -> None:
        """Gives the file back to the operating system, without a sync. Closing twice does nothing."""
        ...


class Lock(Protocol):
    """A lock that is held."""

    def lost(self) -> str | None:
        """Why this lock protects the data directory no longer: its file was removed or replaced. None while it does.

        Raises ``OSError`` when that cannot be found out.
        """
        ...

    def release(self) -> None:
        """Lets others have it. Releasing twice does nothing."""
        ...


class Storage(Protocol):
    """A tree of files. Paths are relative, with ``/``; the empty path is the root. Every method may raise ``OSError``."""

    def open(self, path: str, create: bool = False) -> File:
        """Opens a file. Raises ``FileNotFoundError`` unless ``create``, which makes an empty one where none is."""
        ...

    def list(self, path: str) -> list[str]:
        """The names in a directory, sorted."""
        ...

    def exists(self, path: str) -> bool:
        """Whether there is a file or directory of this name."""
        ...

    def make_directory(self, path: str) -> None:
        """Makes a directory and its parents. Does nothing if it is there."""
        ...

    def remove(self, path: str) -> None:
        """Removes a file. Those that have it open may go on reading it."""
        ...

    def remove_tree(self, path: str) -> None:
        """Removes a directory and all in it. Does nothing if it is not there."""
        ...

    def rename(self, source: str, target: str) -> None:
        """Gives a file or directory another name; a file of that name is atomically replaced.

        Raises ``WriteInDoubtError`` for ``EIO``.
        """
        ...

    def sync_directory(self, path: str) -> None:
        """Returns once the names in a directory are on stable storage. Raises ``WriteInDoubtError`` for ``EIO``."""
        ...

    def read_file(self, path: str) -> bytes:
        """The whole content of a file."""
        ...

    def write_file(self, path: str, data: bytes) -> None:
        """Replaces a file: after a crash there is the old content or the new, after the return the new, durably.

        Raises ``WriteInDoubtError`` for every failure from the rename on, and for a sync that fails with ``EIO``, after
        which nothing the disk says can be trusted; another ``OSError`` when the old content stands.
        """
        ...

    def lock(self, path: str) -> Lock:
        """Takes the lock for this process, or raises ``DataDirectoryLockedError`` at once."""
        ...


def is_full(error: OSError) -> bool:
    """Whether the disk refused for want of room, and everything is as it was."""
    return error.errno in FULL and not isinstance(error, WriteInDoubtError)


def in_doubt(path: str, error: OSError) -> WriteInDoubtError:
    """What is raised when ``error`` leaves open what is on disk."""
    if isinstance(error, WriteInDoubtError):
        return WriteInDoubtError(error.errno, error.strerror, path)
    return WriteInDoubtError(error.errno, f"{error.strerror}; it is unknown whether the change is on disk", path)
