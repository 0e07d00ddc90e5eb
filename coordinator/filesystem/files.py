"""Real files behind the filesystem interface: ``FileStorage`` keeps everything below the data directory."""

from __future__ import annotations

import errno
import fcntl
import os
import shutil
import stat
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Final

from coordinator.filesystem.storage import (
    FULL,
    TEMPORARY_SUFFIX,
    DataDirectoryLockedError,
    File,
    Lock,
    WriteInDoubtError,
    in_doubt,
)
from coordinator.histogram import Distribution, Histogram

_LOCKED: Final = frozenset({errno.EAGAIN, errno.EACCES})
"""What ``flock`` says when others have the lock."""

_IOV_MAX: Final = min(os.sysconf("SC_IOV_MAX"), 1024) if os.sysconf("SC_IOV_MAX") > 0 else 16


def sync_data(descriptor: int) -> None:
    """Returns once what was written to a file is on the disk. Raises ``OSError``.

    macOS has no fdatasync, and its fsync leaves data in the drive's cache: there ``F_FULLFSYNC`` is what reaches the disk
    (fsync(2) of macOS), except on file systems that do not know it.
    """
    _full_sync(descriptor, _sync)


def sync_all(descriptor: int) -> None:
    """As ``sync_data``, with all that the file system notes of it: for directories, and for files that replace others."""
    _full_sync(descriptor, os.fsync)


def _full_sync(descriptor: int, otherwise: Callable[[int], None]) -> None:
    full_sync = getattr(fcntl, "F_FULLFSYNC", None)
    if full_sync is None:
        otherwise(descriptor)
        return
    try:
        fcntl.fcntl(descriptor, full_sync)
    except OSError as error:
        if error.errno not in (errno.ENOTSUP, errno.EINVAL, errno.ENOTTY):
            raise
        otherwise(descriptor)


def _sync(descriptor: int) -> None:
    getattr(os, "fdatasync", os.fsync)(descriptor)


class SyncTimes:
    """How long syncs of files took that succeeded, in seconds; threads note them side by side."""

    def __init__(self) -> None:
        self._seconds = Histogram()
        self._lock = threading.Lock()

    def note(self, seconds: float) -> None:
        """Counts a sync."""
        with self._lock:
            self._seconds.observe(seconds)

    def now(self) -> Distribution:
        """All of them so far."""
        with self._lock:
            return self._seconds.now()


class FileStorage:
    """Real files below one directory, the data directory.

    ``root`` is made, durably, when the first directory or lock below it is.
    """

    def __init__(self, root: str | Path) -> None:
        self.root = os.fspath(root)
        self.syncs = SyncTimes()

    def _path(self, path: str) -> str:
        return os.path.join(self.root, path) if path else self.root

    def open(self, path: str, create: bool = False) -> File:
        """As ``Storage.open``; the descriptor is not inherited by other programs."""
        flags = os.O_RDWR | os.O_APPEND | os.O_CLOEXEC | (os.O_CREAT if create else 0)
        absolute = self._path(path)
        return _RealFile(os.open(absolute, flags, 0o644), absolute, self.syncs)

    def list(self, path: str) -> list[str]:
        """As ``Storage.list``."""
        return sorted(os.listdir(self._path(path)))

    def exists(self, path: str) -> bool:
        """As ``Storage.exists``."""
        return os.path.exists(self._path(path))

    def make_directory(self, path: str) -> None:
        """As ``Storage.make_directory``."""
        self._make_root()
        os.makedirs(self._path(path), exist_ok=True)

    def remove(self, path: str) -> None:
        """As ``Storage.remove``."""
        os.remove(self._path(path))

    def remove_tree(self, path: str) -> None:
        """As ``Storage.remove_tree``."""
        try:
            shutil.rmtree(self._path(path))
        except FileNotFoundError:
            return  # what was asked for is the case

    def rename(self, source: str, target: str) -> None:
        """As ``Storage.rename``."""
        with _in_doubt_after_eio(target):
            os.replace(self._path(source), self._path(target))

    def sync_directory(self, path: str) -> None:
        """As ``Storage.sync_directory``."""
        with _in_doubt_after_eio(path):
            _sync_directory(self._path(path))

    def read_file(self, path: str) -> bytes:
        """As ``Storage.read_file``."""
        with _naming(self._path(path)), open(self._path(path), "rb") as file:
            return file.read()

    def write_file(self, path: str, data: bytes) -> None:
        """As ``Storage.write_file``: a temporary file, synced, renamed, and the directory synced."""
        temporary = self._path(path) + TEMPORARY_SUFFIX
        try:
            with _naming(temporary), open(temporary, "wb") as file:
                file.write(data)
                file.flush()
                _sync_replacement(file.fileno(), path)
        except OSError:
            with suppress(OSError):  # on a full disk it would keep the room that is left
                os.remove(temporary)
            raise
        try:
            self.rename(path + TEMPORARY_SUFFIX, path)
            self.sync_directory(os.path.dirname(path))
        except OSError as error:
            raise in_doubt(path, error) from error

    def lock(self, path: str) -> Lock:
        """As ``Storage.lock``, by ``flock``; the file holds the process id of the process that has the lock."""
        absolute = self._path(path)
        self._make_root()
        os.makedirs(os.path.dirname(absolute), exist_ok=True)
        descriptor = os.open(absolute, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
        try:
            with _naming(absolute):
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            owner = _owner(descriptor)
            os.close(descriptor)
            if error.errno in _LOCKED:
                raise DataDirectoryLockedError(absolute, owner) from error
            raise
        _write_process_id(descriptor, absolute)
        return _RealLock(descriptor, absolute)

    def _make_root(self) -> None:
        """Makes the root and what is missing above it; each new name is synced, or a power cut could take everything."""
        missing = []
        path = os.path.abspath(self.root)
        while not os.path.exists(path):
            missing.append(path)
            path = os.path.dirname(path)
        for path in reversed(missing):
            os.makedirs(path, exist_ok=True)
            _sync_directory(os.path.dirname(path))


class ReadOnlyStorage(FileStorage):
    """The files of a directory for who looks at them only: every method that would change something raises ``EROFS``.

    Nothing is opened for writing, and what is no regular file, such as a pipe, is not opened at all.
    """

    def open(self, path: str, create: bool = False) -> File:
        """As ``Storage.open``. Raises ``OSError`` for what is no regular file, and for ``create``."""
        absolute = self._path(path)
        if create:
            raise _read_only(absolute)
        descriptor = os.open(absolute, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
        if not stat.S_ISREG(os.fstat(descriptor).st_mode):
            os.close(descriptor)
            raise OSError(errno.EINVAL, "it is no regular file", absolute)
        return _RealFile(descriptor, absolute, self.syncs)

    def is_directory(self, path: str) -> bool:
        """Whether there is a directory of this name."""
        return os.path.isdir(self._path(path))

    def size(self, path: str) -> int:
        """The size of a file in bytes. Raises ``OSError``."""
        return os.stat(self._path(path)).st_size

    def read_file(self, path: str) -> bytes:
        """As ``Storage.read_file``, of regular files."""
        file = self.open(path)
        try:
            return file.read(0, file.size())
        finally:
            file.close()

    def lock(self, path: str) -> Lock:
        """Takes the lock as one of several that only read: no daemon begins to use the directory until it is released.

        Raises ``DataDirectoryLockedError`` when a daemon uses it, ``FileNotFoundError`` where none ever did.
        """
        absolute = self._path(path)
        descriptor = os.open(absolute, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
        try:
            with _naming(absolute):
                fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except OSError as error:
            owner = _owner(descriptor)
            os.close(descriptor)
            if error.errno in _LOCKED:
                raise DataDirectoryLockedError(absolute, owner) from error
            raise
        return _RealLock(descriptor, absolute)

    def make_directory(self, path: str) -> None:
        """Raises ``OSError``."""
        raise _read_only(self._path(path))

    def remove(self, path: str) -> None:
        """Raises ``OSError``."""
        raise _read_only(self._path(path))

    def remove_tree(self, path: str) -> None:
        """Raises ``OSError``."""
        raise _read_only(self._path(path))

    def rename(self, source: str, target: str) -> None:
        """Raises ``OSError``."""
        raise _read_only(self._path(source))

    def sync_directory(self, path: str) -> None:
        """Raises ``OSError``."""
        raise _read_only(self._path(path))

    def write_file(self, path: str, data: bytes) -> None:
        """Raises ``OSError``."""
        raise _read_only(self._path(path))


def place_of(file: str) -> tuple[str, str, str]:
    """Where a file lies, links followed: the directory above its own, its own directory's name, and its name.

    For a file of a partition's log these are the data directory, the partition's directory and the file.
    """
    above, name = os.path.split(os.path.realpath(file))
    root, directory = os.path.split(above)
    return root, directory, name


def _read_only(path: str) -> OSError:
    return OSError(errno.EROFS, "it is looked at only, and not changed", path)


def _owner(descriptor: int) -> str:
    """What holds a lock that is refused; the file says which daemon, and nothing of those that share it to read."""
    try:
        fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except OSError:
        holder = os.pread(descriptor, 32, 0).decode("ascii", "replace").strip()
        return f"process {holder}" if holder else "another process"
    return "a program that reads all of it, such as cohort check"


@contextmanager
def _naming(path: str) -> Iterator[None]:
    """Errors of the operating system say which file they are about, also those that are about a descriptor."""
    try:
        yield
    except OSError as error:
        if error.filename is None:
            error.filename = path
        raise


def _sync_replacement(descriptor: int, path: str) -> None:
    try:
        sync_all(descriptor)
    except OSError as error:
        if error.errno == errno.EIO:
            raise in_doubt(path, error) from error
        raise


@contextmanager
def _in_doubt_after_eio(path: str) -> Iterator[None]:
    """After ``EIO`` it is unknown what became of a name."""
    try:
        yield
    except OSError as error:
        if error.errno == errno.EIO and not isinstance(error, WriteInDoubtError):
            raise in_doubt(path, error) from error
        raise


def _sync_directory(path: str) -> None:
    descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        with _naming(path):
            sync_all(descriptor)
    finally:
        os.close(descriptor)


def _write_process_id(descriptor: int, path: str) -> None:
    """Writes into a locked file which process holds the lock; on a full disk it is held without that."""
    content = str(os.getpid()).encode()
    try:
        with _naming(path):
            os.pwrite(descriptor, content, 0)  # over the last one's, which takes no new block
            os.truncate(descriptor, len(content))
    except OSError as error:
        if error.errno not in FULL:
            os.close(descriptor)
            raise


class _RealFile:
    def __init__(self, descriptor: int, path: str, syncs: SyncTimes) -> None:
        self._descriptor = descriptor
        self._path = path
        self._syncs = syncs

    def append(self, pieces: Sequence[bytes | memoryview]) -> None:
        try:
            self._append(pieces)
        except OSError as error:
            error.filename = self._path
            raise

    def _append(self, pieces: Sequence[bytes | memoryview]) -> None:
        start = 0
        while start < len(pieces):
            group = list(pieces[start : start + _IOV_MAX])
            start += len(group)
            missing = sum(map(len, group)) - os.writev(self._descriptor, group)
            if missing:  # a signal, or more than the kernel takes at once: the rest goes out in one piece
                rest = memoryview(b"".join(group))[-missing:]
                while rest:
                    rest = rest[os.write(self._descriptor, rest) :]

    def read(self, position: int, length: int) -> bytes:
        with _naming(self._path):
            return self._read(position, length)

    def _read(self, position: int, length: int) -> bytes:
        data = os.pread(self._descriptor, length, position)
        if len(data) == length or not data:
            return data
        parts = [data]
        missing = length - len(data)
        while missing and (data := os.pread(self._descriptor, missing, position + length - missing)):
            parts.append(data)
            missing -= len(data)
        return b"".join(parts)

    def sync(self) -> None:
        begun_s = time.perf_counter()
        try:
            sync_data(self._descriptor)
        except OSError as error:
            raise in_doubt(self._path, error) from error
        self._syncs.note(time.perf_counter() - begun_s)

    def truncate(self, size: int) -> None:
        with _naming(self._path):
            os.ftruncate(self._descriptor, size)

    def size(self) -> int:
        with _naming(self._path):
            return os.fstat(self._descriptor).st_size

    def close(self) -> None:
        if self._descriptor >= 0:
            descriptor, self._descriptor = self._descriptor, -1
            os.close(descriptor)


class _RealLock:
    def __init__(self, descriptor: int, path: str) -> None:
        self._descriptor = descriptor
        self._path = path

    def lost(self) -> str | None:
        if self._descriptor < 0:
            return None
        try:
            there = os.stat(self._path)
        except (FileNotFoundError, NotADirectoryError):
            return f"{self._path} was removed"
        held = os.fstat(self._descriptor)
        same = (there.st_dev, there.st_ino) == (held.st_dev, held.st_ino)
        return None if same else f"{self._path} was replaced by another file"

    def release(self) -> None:
        # The file stays, so that no process locks a removed one.
        if self._descriptor >= 0:
            descriptor, self._descriptor = self._descriptor, -1
            os.close(descriptor)
