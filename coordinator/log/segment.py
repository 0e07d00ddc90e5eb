"""Segments: the files a partition log is cut into, their names, and how those on disk are exchanged and removed.

::

    00000000000000000000.log                        batches from this base offset on
    00000000000000000000.index                      its index with aborted transactions, once the segment is closed
    00000000000000000000.producers                  what is remembered of producers where this segment begins
    00000000000000000000.cleaned                    compaction at work: removed when found
    00000000000000000000-00000000000000004711.swap  compaction done: takes the place of all segments in [base, end)
    checkpoint  leader-epochs  cleaner-point  clean-end    see ``checkpoints`` and ``clean_end``
"""

from __future__ import annotations

import re
from bisect import bisect_right
from collections.abc import Callable, Sequence
from typing import Final

from coordinator.filesystem.storage import File, Storage
from coordinator.log.aborted import NONE_ABORTED
from coordinator.log.index import NO_TIMESTAMP, SparseIndex

LOG_SUFFIX: Final = ".log"
INDEX_SUFFIX: Final = ".index"
PRODUCERS_SUFFIX: Final = ".producers"
CLEANED_SUFFIX: Final = ".cleaned"
SWAP_SUFFIX: Final = ".swap"

_BASE_NAME: Final = re.compile(r"(\d{20})(\.log|\.index|\.producers|\.cleaned)")
_SWAP_NAME: Final = re.compile(r"(\d{20})-(\d{20})\.swap")


def file_name(base_offset: int, suffix: str) -> str:
    """The name of a segment's file: twenty digits, so that names sort as offsets do."""
    return f"{base_offset:020}{suffix}"


def swap_name(base_offset: int, next_offset: int) -> str:
    """The name of a compacted segment that takes the place of all in ``[base_offset, next_offset)``."""
    return f"{base_offset:020}-{next_offset:020}{SWAP_SUFFIX}"


def base_offset_of(name: str, suffix: str) -> int | None:
    """The base offset in a segment's file name, or ``None`` if the name is none of that suffix."""
    match = _BASE_NAME.fullmatch(name)
    return int(match[1]) if match and match[2] == suffix else None


def swap_range_of(name: str) -> tuple[int, int] | None:
    """Base and next offset in the name of a swap file, or ``None`` if it is none."""
    match = _SWAP_NAME.fullmatch(name)
    return (int(match[1]), int(match[2])) if match else None


def _close_here(file: File) -> None:
    file.close()


class Segment:
    """One segment as the open log knows it. Only the event loop's thread changes it, ``file`` excepted (see ``open_file``).

    ``size`` and ``next_offset`` cover what is committed, never bytes that are being written. ``index`` is in memory for
    the active segment always and for closed ones while they are read. ``readers`` counts the calls that use ``file``.
    ``first_ms`` is the wall time of its first append and ``last_ms`` the latest of any (the clock may be put back),
    ``NO_TIMESTAMP`` while not known: a restart forgets the first of all, and a crash both of the active segment.
    """

    __slots__ = (
        "_close",
        "base_offset",
        "file",
        "first_ms",
        "index",
        "last_ms",
        "lowest_aborted",
        "max_timestamp",
        "next_offset",
        "path",
        "readers",
        "size",
    )

    def __init__(self, path: str, base_offset: int) -> None:
        self.path = path
        self.base_offset = base_offset
        self.next_offset = base_offset
        self.size = 0
        self.max_timestamp = NO_TIMESTAMP
        self.first_ms = NO_TIMESTAMP
        self.last_ms = NO_TIMESTAMP
        self.file: File | None = None
        self.index: SparseIndex | None = None
        self.lowest_aborted = NONE_ABORTED
        """Of a closed segment: the lowest first offset of the aborted transactions that its index has."""
        self.readers = 0
        self._close: Callable[[File], None] | None = None

    def acquire(self) -> None:
        """Keeps the file open until ``release``."""
        self.readers += 1

    def release(self) -> None:
        """Ends one use; the file of a retired segment is closed with the last."""
        self.readers -= 1
        if self._close is not None:
            self.close_if_unused(self._close)

    @property
    def retired(self) -> bool:
        """Whether the log no longer has this segment."""
        return self._close is not None

    def retire(self, close: Callable[[File], None] = _close_here) -> None:
        """The log no longer has this segment: its file is closed, by ``close``, as soon as it is not read any more."""
        self._close = close
        self.close_if_unused(close)

    def close_if_unused(self, close: Callable[[File], None] = _close_here) -> None:
        """Closes the file and forgets the index unless a reader is at work."""
        if self.readers == 0 and self.file is not None:
            file, self.file, self.index = self.file, None, None
            close(file)


def segment_for(segments: Sequence[Segment], offset: int) -> Segment:
    """The segment that covers ``offset``, which must not be below the first segment's base."""
    return segments[bisect_right(segments, offset, key=lambda segment: segment.base_offset) - 1]


def finish_swap(storage: Storage, directory: str, name: str, covered: tuple[int, int]) -> None:
    """Puts a compacted segment into the place of those it was made from. May be killed and begun again at any point.

    The directory is synced before the last rename, so that an old segment never comes back beside the new one.
    """
    for old in storage.list(directory):
        for suffix in (INDEX_SUFFIX, LOG_SUFFIX):
            base = base_offset_of(old, suffix)
            if base is not None and covered[0] <= base < covered[1]:
                storage.remove(f"{directory}/{old}")
    storage.sync_directory(directory)
    storage.rename(f"{directory}/{name}", f"{directory}/{file_name(covered[0], LOG_SUFFIX)}")
    storage.sync_directory(directory)


def remove_segments(storage: Storage, directory: str, bases: Sequence[int]) -> None:
    """Removes the files of closed segments that the log begins behind. Done again after a failure, it removes the rest."""
    for base in bases:
        for suffix in (PRODUCERS_SUFFIX, INDEX_SUFFIX, LOG_SUFFIX):
            path = f"{directory}/{file_name(base, suffix)}"
            if storage.exists(path):
                storage.remove(path)
    if bases:
        storage.sync_directory(directory)
