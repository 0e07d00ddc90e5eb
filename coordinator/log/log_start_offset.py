"""The log start offset of an open log and its checkpoint, which also has what was durable.

A new log start offset is durable first, then segments below it are removed. A crash between the two leaves files that the
next open removes. The other way round a lost segment could not be told from a deleted one.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence

from coordinator.filesystem.executor import Disk
from coordinator.filesystem.storage import WriteInDoubtError, is_full
from coordinator.log.checkpoints import Checkpoint, write_checkpoint
from coordinator.log.clean_end import end_of, write_clean_end
from coordinator.log.errors import LogClosedError, LogWriteError
from coordinator.log.index import SegmentEnd, SparseIndex
from coordinator.log.producers import Snapshot
from coordinator.log.segment import INDEX_SUFFIX, Segment, file_name, remove_segments
from coordinator.log.segment_list import SegmentList
from coordinator.log_output import get_logger

log = get_logger()


class LogStartOffset:
    """The log start offset of one open log. ``busy`` tells whether compaction is reading segments: they stay then."""

    def __init__(
        self,
        disk: Disk,
        directory: str,
        segments: SegmentList,
        offset: int,
        noted: Checkpoint,
        clean_end: SegmentEnd | None,
        busy: Callable[[], bool],
    ) -> None:
        self.offset = offset
        """The first offset that can be read. It never falls."""
        self.noted = noted
        """What the checkpoint on disk says."""
        self._clean_end = clean_end
        self.checkpoint_lock = asyncio.Lock()
        """Held while the checkpoint is written, so that none overtakes a newer one with an older start."""
        self._disk = disk
        self._directory = directory
        self._segments = segments
        self._busy = busy
        self._unremoved: list[Segment] = []
        self._stopped = False

    async def raise_to(self, offset: int) -> None:
        """Raises the log start offset, durably; nothing happens when it is there or beyond. ``offset`` must be committed.

        Raises ``LogWriteError`` when the disk refuses, and the start may be found at either place after a restart;
        ``WriteInDoubtError`` when it is unknown what is on disk.
        """
        async with self.checkpoint_lock:
            if offset <= self.offset:
                return
            if self._stopped:
                raise LogClosedError(f"the log {self._directory} is closed")
            expired = [segment.base_offset for segment in self._segments.closed if segment.next_offset <= offset]
            try:
                await self._write(self.checkpoint(offset), expired)
            except WriteInDoubtError:
                raise
            except OSError as error:
                raise LogWriteError(
                    f"the start of {self._directory} could not be moved to offset {offset}: {error}"
                ) from error

    def checkpoint(self, offset: int | None = None) -> Checkpoint:
        """What the checkpoint would say now, with the start moved to ``offset``."""
        active = self._segments.active
        return Checkpoint(
            self.offset if offset is None else offset, active.base_offset, active.size, active.next_offset
        )

    async def note_end(self) -> None:
        """Writes down how far the log is durable now, unless that is what the checkpoint says.

        Raises ``WriteInDoubtError`` when it is unknown what is on disk, another ``OSError`` when the disk refuses.
        """
        async with self.checkpoint_lock:
            if not self._stopped and (checkpoint := self.checkpoint()) != self.noted:
                await self._write(checkpoint, ())

    async def note_clean_end(self, producers: Snapshot) -> None:
        """Writes down where a log ends that is closed now and on disk as a whole, and what makes a scan unnecessary.

        Costs nothing when the disk has that already. The log is whole without it: errors of the disk are logged.
        """
        active, checkpoint = self._segments.active, self.checkpoint()
        end = end_of(active)
        as_noted = self._clean_end is not None and self._clean_end.place == end.place
        if checkpoint != self.noted or (active.size and not as_noted):
            assert active.index is not None
            await self._disk.run(self._note_clean_end, end, active.index, producers, checkpoint, as_noted)

    def _note_clean_end(
        self, end: SegmentEnd, index: SparseIndex, producers: Snapshot, checkpoint: Checkpoint, as_noted: bool
    ) -> None:
        storage = self._disk.storage
        try:
            if end.end_position and not as_noted:
                write_clean_end(storage, self._directory, end, index, producers)
        except OSError as error:  # the next open scans the segment
            log.warning("clean_end_not_written", directory=self._directory, error=str(error))
        try:
            if checkpoint != self.noted:
                write_checkpoint(storage, self._directory, checkpoint)
        except OSError as error:  # only the proof of the log's end is weaker
            log.warning("checkpoint_not_written", directory=self._directory, error=str(error))

    async def _write(self, checkpoint: Checkpoint, expired: Sequence[int]) -> None:
        active = self._segments.active
        active.acquire()
        try:
            await self._disk.run(self._note, active, checkpoint, expired)
        finally:
            active.release()

    def _note(self, active: Segment, checkpoint: Checkpoint, expired: Sequence[int]) -> None:
        assert active.file is not None
        active.file.sync()  # the checkpoint may name only what is durable, and with flush="os" this need not be
        try:
            write_checkpoint(self._disk.storage, self._directory, checkpoint)
        except OSError as error:
            if checkpoint.start_offset == self.offset or not is_full(error):
                raise
            self._note_on_full_disk(checkpoint, expired, error)
        self.offset = checkpoint.start_offset  # here, as the caller may have been cancelled
        self.noted = checkpoint

    def _note_on_full_disk(self, checkpoint: Checkpoint, expired: Sequence[int], error: OSError) -> None:
        """Deletion is what helps: first go the indexes of what it removes, which can be made anew, then the reserve."""
        storage, removed = self._disk.storage, False
        for base in expired:
            path = f"{self._directory}/{file_name(base, INDEX_SUFFIX)}"
            if storage.exists(path):
                storage.remove(path)
                removed = True
        if removed:
            try:
                write_checkpoint(storage, self._directory, checkpoint)
            except OSError as again:
                if not is_full(again):
                    raise
            else:
                return
        if not self._disk.reserve.release_for(error):
            raise error
        write_checkpoint(storage, self._directory, checkpoint)

    async def give_back(self) -> None:
        """Removes the files of closed segments below the start, unless compaction is at work, and renews the disk's reserve.

        Reads of them that are under way finish. What the disk refuses to remove is tried again with the next call, and
        removed by the next open.
        """
        async with self._segments.exchanging():
            if not self._busy() and not self._stopped:
                self._unremoved += self._segments.drop_below(self.offset)
            if self._unremoved and not self._busy() and not self._stopped:
                try:
                    await self._disk.tend(self._remove, tuple(self._unremoved))
                except OSError as error:  # readers do not see them any more
                    log.warning("segments_not_removed", directory=self._directory, error=str(error))
        if self._disk.reserve.spent:  # what it was given up for may have made room
            await self._disk.tend(self._disk.reserve.restore)

    async def stop(self) -> None:
        """Returns once nothing of this is under way, and nothing more will be."""
        self._stopped = True
        async with self.checkpoint_lock, self._segments.exchanging():
            return

    def _remove(self, expired: Sequence[Segment]) -> None:
        remove_segments(self._disk.storage, self._directory, [segment.base_offset for segment in expired])
        self._unremoved.clear()
