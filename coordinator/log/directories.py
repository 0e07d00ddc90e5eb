"""Making and removing the directories of partition logs: blocking, many at a time.

Making and syncing are two steps, as one sync of the data directory serves any number of new names, and a file system
with a journal carries out the syncs of many directories at the price of few: those that wait at the same time share one
commit, and those of what has not changed since cost none.
"""

from __future__ import annotations

import errno
import re
from collections.abc import Sequence
from typing import Final

from coordinator.filesystem.storage import TEMPORARY_SUFFIX, Storage
from coordinator.log.errors import LogDamagedError
from coordinator.log.segment import CLEANED_SUFFIX, LOG_SUFFIX, SWAP_SUFFIX, file_name, finish_swap, swap_range_of
from coordinator.log_output import get_logger

log = get_logger()

DELETED_SUFFIX: Final = ".deleted"
"""A directory of this ending is being removed: the next start may finish that."""

WORKERS: Final = "workers"
"""Below the data directory, with those of other workers of ``cohortd --workers``: no partition's can have that name."""

_DIRECTORY: Final = re.compile(r"[A-Za-z0-9._-]{1,249}-\d+")


def is_partition_directory(name: str) -> bool:
    """Whether a name in the data directory is one that a partition's directory can have."""
    return _DIRECTORY.fullmatch(name) is not None


def make_logs(storage: Storage, directories: Sequence[str]) -> None:
    """Makes logs that hold nothing, one in each directory; durable after ``sync_logs``.

    A directory that is there already is what a creation left that a crash cut short: it holds no record and is replaced.
    Raises ``FileExistsError`` when one does hold records, as those may not go unasked; ``OSError`` when the disk
    refuses. Some of the directories may be there then.
    """
    for directory in directories:
        if storage.exists(directory):
            _check_empty(storage, directory)
            storage.remove_tree(directory)
        storage.make_directory(directory)
        storage.open(f"{directory}/{file_name(0, LOG_SUFFIX)}", create=True).close()


def sync_logs(storage: Storage, directories: Sequence[str]) -> None:
    """Makes durable what ``make_logs`` made."""
    sync_directories(storage, directories)
    storage.sync_directory("")


def sync_directories(storage: Storage, directories: Sequence[str]) -> None:
    """Makes durable what is in directories; their own names are the data directory's to sync."""
    for directory in directories:
        storage.sync_directory(directory)


def remove_logs(storage: Storage, directories: Sequence[str]) -> None:
    """Removes directories, durably. After a crash each is there whole, or found by ``finish_removals``, or gone."""
    present = [directory for directory in directories if storage.exists(directory)]
    for directory in present:
        storage.remove_tree(directory + DELETED_SUFFIX)
        storage.rename(directory, directory + DELETED_SUFFIX)
    # Also without a rename: one before that failed half-way may have renamed them, unsynced.
    storage.sync_directory("")
    for directory in directories:
        storage.remove_tree(directory + DELETED_SUFFIX)


def finish_removals(storage: Storage) -> None:
    """Removes what removals that were cut short have left. What cannot be removed stays, with a line in the daemon's log."""
    for name in storage.list(""):
        if name.endswith(DELETED_SUFFIX) and is_partition_directory(name.removesuffix(DELETED_SUFFIX)):
            try:
                storage.remove_tree(name)
            except OSError as error:
                log.warning("removed_partition_not_deleted", name=name, error=str(error))


def tidied(storage: Storage, directory: str) -> list[str]:
    """The names in a log's directory, without what was only half done: that is removed, or finished."""
    try:
        names = storage.list(directory)
    except FileNotFoundError:
        raise LogDamagedError(directory, "its directory", "it is missing") from None
    leftovers = [name for name in names if name.endswith((TEMPORARY_SUFFIX, CLEANED_SUFFIX))]
    for name in leftovers:
        storage.remove(f"{directory}/{name}")
    swaps = [(name, covered) for name in names if (covered := swap_range_of(name)) is not None]
    for name, covered in swaps:
        finish_swap(storage, directory, name, covered)
    return storage.list(directory) if leftovers or swaps else names


def _check_empty(storage: Storage, directory: str) -> None:
    for name in storage.list(directory):
        if name.endswith((LOG_SUFFIX, SWAP_SUFFIX, CLEANED_SUFFIX)):
            file = storage.open(f"{directory}/{name}")
            try:
                size = file.size()
            finally:
                file.close()
            if size:
                raise FileExistsError(
                    errno.EEXIST,
                    "a directory of this name holds records that the metadata does not know: move it away",
                    directory,
                )
