"""Which data directories a check looks at: the one that it is given, and in it those of other workers of a daemon.

Each has a lock, metadata or an inventory, and logs of its own. A partition that is asked for by name is looked at in each
directory that has it.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from typing import Final, NamedTuple

from coordinator.filesystem.files import ReadOnlyStorage
from coordinator.log.directories import WORKERS, is_partition_directory
from coordinator.log.segment import LOG_SUFFIX
from coordinator.metadata.encoding import LOG, SNAPSHOT
from coordinator.nodes import identity, inventory

LOCK: Final = "lock"
PROBE: Final = "writable"
"""What ``/readyz`` has written."""
_OURS: Final = (SNAPSHOT, LOG, identity.PATH, inventory.PATH)


class NotADataDirectoryError(Exception):
    """There is nothing to check; the text says what is there instead."""


class Root(NamedTuple):
    """A data directory that is looked at. ``names`` is what lies in it, ``only`` the partitions that are asked for: () all.

    ``below`` is where it lies in the one that was given: "" that one itself, else ``workers/1``.
    """

    storage: ReadOnlyStorage
    names: Sequence[str]
    only: Sequence[str] = ()
    below: str = ""

    @property
    def logs(self) -> list[str]:
        """The directories of the partitions that are looked at."""
        return list(self.only) or [name for name in self.names if self.is_log(name)]

    def is_log(self, name: str) -> bool:
        """Whether there is a partition's directory of this name."""
        return is_partition_directory(name) and self.storage.is_directory(name)


def roots_in(directory: str, only: Sequence[str]) -> list[Root]:
    """The data directories of a daemon, of which one is there when its ``only`` partitions are.

    Raises ``NotADataDirectoryError`` when ``directory`` is none, or none of them has one of ``only``.
    """
    first = _root(directory, "")
    if any(name.endswith(LOG_SUFFIX) for name in first.names):
        raise NotADataDirectoryError(
            f"{directory} is the directory of a partition: give the data directory above it, and then its name to look "
            "at no other"
        )
    workers = directory.rstrip("/") + f"/{WORKERS}"
    roots = [first, *(_root(f"{workers}/{name}", f"{WORKERS}/{name}") for name in workers_in(first))]
    if not any(map(_is_ours, roots)):
        names = first.names
        there = f"it has {names[0]} and {len(names) - 1} more" if names else "it is empty"
        raise NotADataDirectoryError(f"{directory} is no data directory of Cohort: {there}")
    for name in only:
        if not any(name in root.names and is_partition_directory(name) for root in roots):
            raise NotADataDirectoryError(f"{directory} has no partition {name}: give names such as lines-0")
    if not only:
        return roots
    asked = [root._replace(only=[name for name in only if name in root.names]) for root in roots]
    return [root for root in asked if root.only]


def workers_in(root: Root) -> list[str]:
    """The names of the workers' directories, which are their numbers, in order. Raises ``OSError``."""
    if WORKERS not in root.names or not root.storage.is_directory(WORKERS):
        return []
    names = [name for name in root.storage.list(WORKERS) if is_worker(name)]
    return sorted((name for name in names if root.storage.is_directory(f"{WORKERS}/{name}")), key=int)


def is_worker(name: str) -> bool:
    """Whether a directory of this name can be a worker's."""
    return name.isascii() and name.isdecimal()


def bytes_in(roots: Sequence[Root]) -> int:
    """The size of all segments, for the progress; of what goes away meanwhile nothing counts."""
    total = 0
    for root in roots:
        for directory in filter(root.storage.is_directory, root.logs):
            try:
                segments = [name for name in root.storage.list(directory) if name.endswith(LOG_SUFFIX)]
                total += sum(root.storage.size(f"{directory}/{name}") for name in segments)
            except OSError:  # the check says what is wrong
                continue
    return total


@contextmanager
def locked(roots: Sequence[Root]) -> Iterator[None]:
    """No daemon begins to use one of them meanwhile. Raises ``DataDirectoryLockedError`` when one does already.

    A directory without a lock file has not been used yet, or was copied without it.
    """
    with ExitStack() as stack:
        for root in roots:
            try:
                stack.callback(root.storage.lock(LOCK).release)
            except FileNotFoundError:
                continue
        yield


def _root(directory: str, below: str) -> Root:
    storage = ReadOnlyStorage(directory)
    try:
        return Root(storage, storage.list(""), below=below)
    except OSError as error:
        raise NotADataDirectoryError(f"{directory} is no directory that can be read: {error.strerror}") from error


def _is_ours(root: Root) -> bool:
    return any(name in root.names for name in _OURS) or any(_has_segments(root, name) for name in root.names)


def _has_segments(root: Root, name: str) -> bool:
    return root.is_log(name) and any(file.endswith(LOG_SUFFIX) for file in root.storage.list(name))
