"""Reads and look-ups by time in an open log: which segment, where in it, and what the disk executor does there."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Final

from coordinator.filesystem.executor import Disk
from coordinator.filesystem.storage import File
from coordinator.log.aborted import NOTHING_ABORTED, AbortedBatches, AbortedTransactions, nothing_in
from coordinator.log.errors import LogDamagedError, LogError
from coordinator.log.scan import CHUNK_BYTES, walk
from coordinator.log.segment import Segment
from coordinator.log.segment_list import SegmentList
from protocol.errors import ProtocolError
from protocol.record_batch import HEADER_BYTES, MAGIC, Attributes, check_body, decode_columns, iter_batches, read_header

COMMITTED_READS: Final = 4
"""Reads of one call as long as everything that they find is aborted."""
_MAX_HINTS: Final = 256
_LOOK_AHEAD: Final = 4096
"""Offsets for which a look-up by time asks at once what is aborted."""
_CONTROL: Final = int(Attributes.CONTROL)


class LogReader:
    """Reads one log; the caller has checked that the offsets are in the log."""

    def __init__(self, disk: Disk, directory: str, segments: SegmentList) -> None:
        self._disk = disk
        self._directory = directory
        self._segments = segments
        self.damage: LogDamagedError | None = None
        """See ``PartitionLog.damage``."""
        # Where the next read of a reader goes on: sequential readers need no index.
        self._hints: dict[int, tuple[Segment, int]] = {}

    async def read(self, offset: int, max_bytes: int, end_offset: int) -> bytes:
        """See ``PartitionLog.read``; nothing at or behind ``end_offset`` is read."""
        return (await self._read(offset, max_bytes, end_offset, committed=False)).data

    async def read_committed(self, offset: int, max_bytes: int, end_offset: int) -> bytes:
        """As ``read``, with empty batches in the place of aborted ones; everything below ``end_offset`` is decided.

        Reads on, a few times, as long as all of it is aborted: what has been found then is an answer.
        """
        found = await self._read(offset, max_bytes, end_offset, committed=True)
        base_offset, passed = found.base_offset, b""
        for _ in range(COMMITTED_READS - 1):
            if found.all_aborted_epoch is None or found.next_offset >= end_offset:
                break
            passed = b"".join(nothing_in(base_offset, found.next_offset, found.all_aborted_epoch))
            try:
                found = await self._read(found.next_offset, max_bytes - len(passed), end_offset, committed=True)
            except (LogError, OSError):  # the next read begins here and says so
                return passed
            if found.all_aborted_epoch is not None:
                nothing = nothing_in(base_offset, found.next_offset, found.all_aborted_epoch)
                found = replace(found, data=b"".join(nothing))
                passed = b""
        if len(passed) + len(found.data) > max_bytes and passed:
            return passed
        return passed + found.data

    async def _read(self, offset: int, max_bytes: int, end_offset: int, committed: bool) -> BatchesRead:
        while True:
            segment = await self._segments.acquire(offset)
            try:
                assert segment.file is not None
                assert segment.index is not None
                aborted = await self._aborted(segment, offset, end_offset) if committed else ()
                if aborted is None:
                    continue
                hinted, position = self._hints.pop(offset, (None, 0))
                if hinted is not segment:
                    position = segment.index.position_for_offset(offset)
                found = await self._disk.read(
                    read_committed_batches,
                    segment.file,
                    position,
                    segment.size,
                    offset,
                    max_bytes,
                    end_offset,
                    aborted,
                )
            except ProtocolError as error:
                if segment.retired:  # its file may have been cut meanwhile
                    continue
                raise self._damaged(f"{segment.path}, offset {offset}", error) from error
            finally:
                segment.release()
            if not segment.retired:
                # Where it began is of use too: a fetch that waits for more asks for the same again.
                self._hints[offset] = (segment, found.position)
                self._hints[found.next_offset] = (segment, found.next_position)
                while len(self._hints) > _MAX_HINTS:
                    del self._hints[next(iter(self._hints))]
            return found

    async def check_bodies(self, records: bytes) -> None:
        """See ``PartitionLog.check_bodies``."""
        try:
            await asyncio.get_running_loop().run_in_executor(None, _check_bodies, records)
        except ProtocolError as error:
            raise self._damaged(f"what was read from offset {read_header(records).base_offset} on", error) from error

    def _damaged(self, where: str, error: ProtocolError) -> LogDamagedError:
        self.damage = LogDamagedError(self._directory, where, str(error))
        return self.damage

    async def _aborted(self, segment: Segment, offset: int, end_offset: int) -> list[AbortedTransactions] | None:
        """What has the aborted transactions of a read from ``offset`` in this segment, which the caller has acquired.

        None when compaction or retention has taken the segment out of the log meanwhile: the markers of what it holds may
        be gone, so the read begins anew.
        """
        found = await self._segments.aborted_in(offset, min(end_offset, segment.next_offset))
        return None if segment.retired else found

    def bytes_from(self, offset: int, end_offset: int) -> tuple[int, bool]:
        """See ``PartitionLog.bytes_from``; nothing at or behind ``end_offset`` counts, where that is known to the byte."""
        segment = self._segments.covering(offset)
        position = self._position(segment, offset)
        if end_offset >= segment.next_offset:
            return segment.size - position, segment is not self._segments.active
        # Once a read has ended there, its position is known; before, that of an index entry behind it.
        hinted, end = self._hints.get(end_offset, (None, 0))
        if hinted is not segment:
            end = segment.size if segment.index is None else segment.index.position_behind(end_offset, segment.size)
        return max(end - position, 0), False

    def _position(self, segment: Segment, offset: int) -> int:
        hinted, position = self._hints.get(offset, (None, 0))
        if hinted is segment:
            return position
        return segment.index.position_for_offset(offset) if segment.index is not None else 0

    async def offset_for_timestamp(
        self, timestamp_ms: int, offset: int, end_offset: int, committed: bool
    ) -> tuple[int, int] | None:
        """See ``PartitionLog.offset_for_timestamp``; looks from ``offset`` up to ``end_offset``."""
        start_offset = offset
        while offset < end_offset:
            segment = self._segments.covering(offset)
            if segment.max_timestamp >= timestamp_ms:
                segment = await self._segments.acquire(offset)
                try:
                    assert segment.file is not None
                    assert segment.index is not None
                    aborted = await self._aborted(segment, offset, end_offset) if committed else ()
                    if aborted is None:
                        continue
                    position = segment.index.position_for_timestamp(timestamp_ms)
                    offsets = range(start_offset, end_offset)
                    found = await self._disk.read(
                        find_timestamp, segment.file, position, segment.size, timestamp_ms, offsets, aborted
                    )
                except ProtocolError as error:
                    if segment.retired:  # as above
                        continue
                    raise self._damaged(segment.path, error) from error
                finally:
                    segment.release()
                if found is not None:
                    return found
            offset = segment.next_offset
        return None


def _check_bodies(records: bytes) -> None:
    for position, header in iter_batches(records):
        check_body(records, position, header)


@dataclass(frozen=True, slots=True)
class BatchesRead:
    """Whole batches, where they begin, and where the next read goes on: most readers ask for that next."""

    data: bytes
    base_offset: int
    position: int
    next_offset: int
    next_position: int
    all_aborted_epoch: int | None = None
    """The last leader epoch in ``data`` if that is nothing but empty batches in the place of aborted ones."""


def read_batches(file: File, position: int, limit: int, offset: int, max_bytes: int, end_offset: int) -> BatchesRead:
    """Whole batches from the one that covers ``offset``, in at most ``max_bytes`` unless the first alone is larger.

    ``position`` is the start of a batch at or before it; nothing at or behind the position ``limit`` or the offset
    ``end_offset`` is read. Headers are checked, bodies where they are decoded. Raises ``ProtocolError`` when the
    batch of ``offset`` is damaged, and says where whole ones go on; what lies before damage can be read.
    """
    found, length = _read(file, position, limit, offset, max_bytes, end_offset)
    return found if length == len(found.data) else replace(found, data=found.data[:length])


def read_committed_batches(
    file: File,
    position: int,
    limit: int,
    offset: int,
    max_bytes: int,
    end_offset: int,
    aborted: Sequence[AbortedTransactions],
) -> BatchesRead:
    """As ``read_batches``, with empty batches in the place of those that belong to ``aborted`` transactions."""
    found, length = _read(file, position, limit, offset, max_bytes, end_offset)
    batches = AbortedBatches(aborted, found.base_offset, found.next_offset)
    if batches:
        data, epoch = batches.without(memoryview(found.data)[:length], found.next_offset)
        return replace(found, data=data, all_aborted_epoch=epoch)
    return found if length == len(found.data) else replace(found, data=found.data[:length])


def _read(
    file: File, position: int, limit: int, offset: int, max_bytes: int, end_offset: int
) -> tuple[BatchesRead, int]:
    """What ``read_batches`` gives, with more behind it; and how many bytes of it count: they are copied once only."""
    position = _position_of(file, position, limit, offset, end_offset)
    buffer = file.read(position, min(max(max_bytes, HEADER_BYTES), limit - position))
    header = read_header(buffer)
    base_offset = header.base_offset
    if header.length > len(buffer):
        if position + header.length > limit:
            raise ProtocolError(f"the batch of offset {header.base_offset} is cut off at position {limit}")
        buffer = file.read(position, header.length)
    length, next_offset = header.length, header.next_offset
    while len(buffer) - length >= HEADER_BYTES and next_offset < end_offset:
        try:
            header = read_header(buffer, length)
        except ProtocolError:
            break  # the next read begins here and says so
        if header.base_offset != next_offset or length + header.length > len(buffer):
            break
        if header.next_offset > end_offset:
            break
        length, next_offset = length + header.length, header.next_offset
    return BatchesRead(buffer, base_offset, position, next_offset, position + length), length


def _position_of(file: File, position: int, limit: int, offset: int, end_offset: int) -> int:
    """The position of the batch that covers ``offset``, which lies at or behind ``position``.

    Reads headers only, in pieces of a few kilobytes as the index leaves little to walk.
    """
    buffer, start, expected = b"", 0, 0
    while position < limit:
        if len(buffer) - start < HEADER_BYTES:
            buffer, start = file.read(position, min(8192, limit - position)), 0
        try:
            header = read_header(buffer, start)
        except ProtocolError as error:
            position = _next_whole(file, position, limit, range(expected, end_offset), error)
            buffer, start = b"", 0
            continue
        if header.base_offset > offset:
            raise ProtocolError(
                f"offset {offset} is in a damaged place; whole batches go on at offset {header.base_offset}, and a consumer "
                "that seeks there passes over it"
            )
        expected = header.next_offset
        if expected > offset:
            return position
        position += header.length
        start += header.length
    raise ProtocolError(f"offset {offset} is not where the index says: the segment ends at position {limit}")


def _next_whole(file: File, position: int, limit: int, offsets: range, error: ProtocolError) -> int:
    """The position of the first whole batch behind the damaged header at ``position``, of one of these ``offsets``.

    Batches are multiples of eight bytes, so what a record holds is hardly ever taken for one. Raises ``error`` when there is
    none.
    """
    position += 8
    while limit - position >= HEADER_BYTES:
        buffer = file.read(position, min(CHUNK_BYTES, limit - position))
        if len(buffer) < HEADER_BYTES:
            break  # the file was cut meanwhile
        start = buffer.find(MAGIC)
        while 0 <= start <= len(buffer) - HEADER_BYTES:
            if start % 8 == 0 and _is_whole(file, position + start, buffer[start : start + HEADER_BYTES], offsets):
                return position + start
            start = buffer.find(MAGIC, start + 1)
        position += (len(buffer) - HEADER_BYTES) // 8 * 8 + 8
    raise ProtocolError(f"{error}; no whole batch follows in this segment") from error


def _is_whole(file: File, position: int, head: bytes, offsets: range) -> bool:
    try:
        header = read_header(head)
        check_body(file.read(position, header.length), 0, header)
    except ProtocolError:
        return False
    return header.base_offset in offsets


def find_timestamp(
    file: File,
    position: int,
    limit: int,
    timestamp_ms: int,
    offsets: range,
    aborted: Sequence[AbortedTransactions] = (),
) -> tuple[int, int] | None:
    """Offset and timestamp of the first record at or after ``timestamp_ms`` behind ``position`` that is one of ``offsets``.

    Records of ``aborted`` transactions and end markers do not count. In a batch that does not decode, or whose compression
    this installation cannot read, the batch as a whole stands for its records: its first offset and its largest timestamp,
    so that no read starts too late. Raises ``ProtocolError`` when the disk has damaged a batch.
    """
    known, known_until = NOTHING_ABORTED, 0
    for _, header, batch in walk(file, position, limit):
        if header.base_offset >= offsets.stop:
            return None
        if header.max_timestamp < timestamp_ms or header.next_offset <= offsets.start:
            continue
        if aborted and header.base_offset >= known_until:
            known_until = header.next_offset + _LOOK_AHEAD
            known = AbortedBatches(aborted, header.base_offset, known_until)
        if header.attributes & _CONTROL or known.has(header.attributes, header.producer_id, header.base_offset):
            continue
        check_body(batch, 0, header)
        try:
            columns = decode_columns(batch, 0, header)
        except (ModuleNotFoundError, ProtocolError):  # an older daemon took it without a look into it
            return max(header.base_offset, offsets.start), header.max_timestamp
        timestamps: Sequence[int] = columns.timestamps_ms()
        if header.attributes & Attributes.LOG_APPEND_TIME:  # the broker's clock stands for all records
            timestamps = [header.max_timestamp] * columns.count
        for delta, timestamp in zip(columns.offset_deltas(), timestamps, strict=True):
            if timestamp >= timestamp_ms and header.base_offset + delta >= offsets.start:
                return header.base_offset + delta, timestamp
    return None
