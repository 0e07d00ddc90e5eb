"""Reads and look-ups by time in an open log: which segment, where in it, and the pool call that does it."""

from __future__ import annotations

from typing import Final

from coordinator.filesystem.executor import Disk
from coordinator.log.errors import LogDamagedError
from coordinator.log.reading import find_timestamp, read_batches
from coordinator.log.segment import Segment
from coordinator.log.segment_list import SegmentList
from protocol.errors import ProtocolError

_MAX_HINTS: Final = 256


class LogReader:
    """Reads one log; the caller has checked that the offsets are in the log."""

    def __init__(self, disk: Disk, directory: str, segments: SegmentList) -> None:
        self._disk = disk
        self._directory = directory
        self._segments = segments
        # Where the next read of a reader goes on: sequential readers need no index.
        self._hints: dict[int, tuple[Segment, int]] = {}

    async def read(self, offset: int, max_bytes: int, end_offset: int) -> bytes:
        """See ``PartitionLog.read``; nothing at or behind ``end_offset`` is read."""
        segment = await self._segments.acquire(offset)
        try:
            assert segment.file is not None
            assert segment.index is not None
            hinted, position = self._hints.pop(offset, (None, 0))
            if hinted is not segment:
                position = segment.index.position_for_offset(offset)
            found = await self._disk.read(
                read_batches, segment.file, position, segment.size, offset, max_bytes, end_offset
            )
        except ProtocolError as error:
            raise LogDamagedError(self._directory, f"{segment.path}, offset {offset}", str(error)) from error
        finally:
            segment.release()
        if not segment.retired:
            # Where it began is of use too: a fetch that waits for more asks for the same again.
            self._hints[offset] = (segment, found.next_position - len(found.data))
            self._hints[found.next_offset] = (segment, found.next_position)
            while len(self._hints) > _MAX_HINTS:
                del self._hints[next(iter(self._hints))]
        return found.data

    def bytes_from(self, offset: int) -> tuple[int, bool]:
        """See ``PartitionLog.bytes_from``."""
        segment = self._segments.covering(offset)
        hinted, position = self._hints.get(offset, (None, 0))
        if hinted is not segment:
            position = segment.index.position_for_offset(offset) if segment.index is not None else 0
        return segment.size - position, segment is not self._segments.active

    async def offset_for_timestamp(self, timestamp_ms: int, offset: int, end_offset: int) -> tuple[int, int] | None:
        """See ``PartitionLog.offset_for_timestamp``; looks from ``offset`` up to ``end_offset``."""
        start_offset = offset
        while offset < end_offset:
            segment = self._segments.covering(offset)
            if segment.max_timestamp >= timestamp_ms:
                segment = await self._segments.acquire(offset)
                try:
                    assert segment.file is not None
                    assert segment.index is not None
                    position = segment.index.position_for_timestamp(timestamp_ms)
                    found = await self._disk.read(
                        find_timestamp, segment.file, position, segment.size, timestamp_ms, start_offset
                    )
                except ProtocolError as error:
                    raise LogDamagedError(self._directory, segment.path, str(error)) from error
                finally:
                    segment.release()
                if found is not None:
                    return found
            offset = segment.next_offset
        return None
