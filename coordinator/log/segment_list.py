"""The segments of an open log: which one covers an offset, which files stay open, and the exchange of compacted ones."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Final

from coordinator.filesystem.executor import Disk
from coordinator.log.aborted import NONE_ABORTED, AbortedTransactions
from coordinator.log.config import LogConfig
from coordinator.log.errors import LogError, OffsetNotInLogError
from coordinator.log.index import NO_TIMESTAMP
from coordinator.log.scan import load_index
from coordinator.log.segment import Segment, segment_for

MAX_FILES: Final = 64
MAX_INDEX_BYTES: Final = 64 * 1024 * 1024


class OpenFiles:
    """The closed segments that keep their file open and their index in memory while no read uses them: the last ones read.

    Counted over all logs of a node. Each log for itself would need few, but ten thousand logs that are read from the
    beginning would then need more descriptors than there are, and a daemon without any can neither close a segment nor
    answer a client. Those being read count as well.
    """

    def __init__(self, max_files: int = MAX_FILES, max_index_bytes: int = MAX_INDEX_BYTES) -> None:
        self._max_files = max_files
        self._max_index_bytes = max_index_bytes
        self._segments: dict[Segment, int] = {}
        """With the bytes of their indexes; the one not read for the longest time first."""
        self._index_bytes = 0

    def use(self, segment: Segment) -> None:
        """Notes a segment that is being opened or read, and closes others that no reader uses if there are too many."""
        self.forget(segment)
        size = segment.index.size if segment.index is not None else 0
        self._segments[segment] = size
        self._index_bytes += size
        while len(self._segments) > self._max_files or self._index_bytes > self._max_index_bytes:
            oldest = next((known for known in self._segments if not known.readers and known is not segment), None)
            if oldest is None:
                return
            self.forget(oldest)
            oldest.close_if_unused()

    def forget(self, segment: Segment) -> None:
        """Leaves out a segment that is not part of its log any more."""
        self._index_bytes -= self._segments.pop(segment, 0)


class SegmentList:
    """Segments in order of their base offsets without a gap; the last one is active, the others are closed."""

    def __init__(
        self, disk: Disk, directory: str, config: LogConfig, segments: list[Segment], open_files: OpenFiles
    ) -> None:
        self.active = segments[-1]
        """The segment that appends go to."""
        self._disk = disk
        self._directory = directory
        self._config = config
        self._segments = segments
        self._open_files = open_files
        # Compaction removes files while readers open them: never at the same time.
        self._files_lock = asyncio.Lock()
        self._refusal: LogError | None = None
        """Why no segment can be acquired any more."""
        self._with_aborted = list[Segment]()
        """The closed ones that have markers of aborted transactions."""
        self._find_aborted()

    @property
    def closed(self) -> list[Segment]:
        """All but the active one."""
        return self._segments[:-1]

    @property
    def start_offset(self) -> int:
        """The first offset of the first segment; the log may begin within it."""
        return self._segments[0].base_offset

    @property
    def all(self) -> list[Segment]:
        """Every segment, the active one last."""
        return list(self._segments)

    def covering(self, offset: int) -> Segment:
        """The segment that covers ``offset``. Raises ``OffsetNotInLogError`` below ``start_offset``."""
        if offset < self.start_offset:
            raise OffsetNotInLogError(offset, self.start_offset, self.active.next_offset)
        return segment_for(self._segments, offset)

    def roll(self, segment: Segment) -> None:
        """Makes ``segment`` the active one."""
        closed = self.active
        self._open_files.use(closed)
        if closed.index is not None:
            closed.lowest_aborted = closed.index.aborted.lowest_first
        self._segments.append(segment)
        self.active = segment
        self._find_aborted()

    async def acquire(self, offset: int) -> Segment:
        """The segment that covers ``offset``, with its file open and its index loaded until it is released.

        Raises ``OffsetNotInLogError`` when retention has removed it meanwhile, ``LogDamagedError`` when it proves to be
        damaged, ``OSError`` when it cannot be opened, and what ``close`` was given.
        """
        if self._refusal is not None:
            raise self._refusal
        segment = self.covering(offset)
        if segment.file is None or segment.index is None:
            async with self._files_lock:
                segment = self.covering(offset)  # exchanged or removed meanwhile
                if segment.file is None or segment.index is None:
                    try:
                        await self._disk.read(self._open, segment)
                    except asyncio.CancelledError:
                        if segment.file is not None:  # it is open nevertheless
                            self._open_files.use(segment)
                        raise
        if segment is not self.active:
            self._open_files.use(segment)
        segment.acquire()
        return segment

    def _open(self, segment: Segment) -> None:
        """In the pool. Sets the attributes here and not in the caller, which may be cancelled."""
        file = self._disk.storage.open(segment.path)
        try:
            segment.index = load_index(
                self._disk.storage, self._directory, segment, file, segment.next_offset, self._config
            )
        except BaseException:
            file.close()
            raise
        segment.file = file

    async def aborted_in(self, start_offset: int, end_offset: int) -> list[AbortedTransactions]:
        """What may have aborted transactions with records in ``[start_offset, end_offset)``, in order: mostly nothing.

        Raises as ``acquire``. Whoever reads a segment with it must have acquired it before and look afterwards that it is
        not retired: once compaction has exchanged what the records lie in, it exchanges what the markers lie in.
        """
        found = []
        active = self.active.index  # now: the segment may be closed while others are opened
        for segment in self._with_aborted:
            if segment.lowest_aborted < end_offset and segment.next_offset > start_offset:
                if segment.index is not None:
                    found.append(segment.index.aborted)
                    continue
                opened = await self.acquire(segment.base_offset)
                if opened.index is not None:
                    found.append(opened.index.aborted)
                opened.release()
        if active is not None and active.aborted.lowest_first < end_offset:
            found.append(active.aborted)
        return found

    def _find_aborted(self) -> None:
        closed = self._segments[:-1]
        self._with_aborted = [segment for segment in closed if segment.lowest_aborted != NONE_ABORTED]

    def exchanging(self) -> asyncio.Lock:
        """Held while files are exchanged on disk and ``exchange`` is called."""
        return self._files_lock

    def exchange(self, covered: Sequence[Segment], compacted: Segment) -> None:
        """Puts ``compacted`` into the place of ``covered``. Reads of the old ones finish on the old files."""
        start = self._segments.index(covered[0])
        self._segments[start : start + len(covered)] = [compacted]
        for segment in covered:
            self._open_files.forget(segment)
            segment.retire(self._disk.close_file)
        self._find_aborted()

    def stamp(self, now_ms: int) -> None:
        """What is not known of the times of appends counts from ``now_ms``; so does a beginning that lies in the future."""
        for segment in self._segments:
            if segment.last_ms == NO_TIMESTAMP:
                segment.last_ms = now_ms
        if self.active.size and (self.active.first_ms == NO_TIMESTAMP or self.active.first_ms > now_ms):
            self.active.first_ms = now_ms

    def drop_below(self, offset: int) -> list[Segment]:
        """Takes the closed segments that lie wholly below ``offset`` out of the log. Reads of them finish."""
        count = sum(segment.next_offset <= offset for segment in self._segments[:-1])
        dropped = self._segments[:count]
        del self._segments[:count]
        for segment in dropped:
            self._open_files.forget(segment)
            segment.retire(self._disk.close_file)
        self._find_aborted()
        return dropped

    def close(self, refusal: LogError) -> None:
        """Closes all files; those being read, when their readers are done. Others get ``refusal``."""
        self._refusal = refusal
        for segment in self._segments:
            self._open_files.forget(segment)
            segment.retire()
