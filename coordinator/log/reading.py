"""Blocking reads from one segment; the shell calls them in the disk pool."""

from __future__ import annotations

from dataclasses import dataclass

from coordinator.log.scan import walk
from coordinator.storage import File
from protocol.errors import ProtocolError
from protocol.record_batch import HEADER_BYTES, Attributes, check_body, decode_columns, read_header


@dataclass(frozen=True, slots=True)
class BatchesRead:
    """Whole batches, and where the next read goes on: most readers ask for that next."""

    data: bytes
    next_offset: int
    next_position: int


def read_batches(file: File, position: int, limit: int, offset: int, max_bytes: int, end_offset: int) -> BatchesRead:
    """Whole batches from the one that covers ``offset``, in at most ``max_bytes`` unless the first alone is larger.

    ``position`` is the start of a batch at or before it; nothing at or behind the position ``limit`` or the offset
    ``end_offset`` is read. Headers are checked, bodies are not: whoever decodes them does. Raises ``ProtocolError``.
    """
    position = _position_of(file, position, limit, offset)
    buffer = file.read(position, min(max(max_bytes, HEADER_BYTES), limit - position))
    header = read_header(buffer)
    if header.length > len(buffer):
        if position + header.length > limit:
            raise ProtocolError(f"the batch of offset {header.base_offset} is cut off at position {limit}")
        buffer = file.read(position, header.length)
    length, next_offset = header.length, header.next_offset
    while len(buffer) - length >= HEADER_BYTES and next_offset < end_offset:
        header = read_header(buffer, length)
        if header.base_offset != next_offset:
            raise ProtocolError(f"offset {header.base_offset} follows where {next_offset} belongs")
        if length + header.length > len(buffer) or header.next_offset > end_offset:
            break
        length, next_offset = length + header.length, header.next_offset
    return BatchesRead(buffer if length == len(buffer) else buffer[:length], next_offset, position + length)


def _position_of(file: File, position: int, limit: int, offset: int) -> int:
    """The position of the batch that covers ``offset``, which lies at or behind ``position``.

    Reads headers only, in pieces of a few kilobytes as the index leaves little to walk.
    """
    buffer, start = b"", 0
    while position < limit:
        if len(buffer) - start < HEADER_BYTES:
            buffer, start = file.read(position, min(8192, limit - position)), 0
        header = read_header(buffer, start)
        if header.next_offset > offset:
            return position
        position += header.length
        start += header.length
    raise ProtocolError(f"offset {offset} is not where the index says: the segment ends at position {limit}")


def find_timestamp(
    file: File, position: int, limit: int, timestamp_ms: int, start_offset: int = 0
) -> tuple[int, int] | None:
    """Offset and timestamp of the first record at or after ``timestamp_ms`` behind ``position``, from ``start_offset`` on.

    In a batch that does not decode, or whose compression this installation cannot read, the batch as a whole stands for its
    records: its first offset and its largest timestamp, so that nobody starts too late. Raises ``ProtocolError`` for a batch
    that the disk has damaged.
    """
    for _, header, batch in walk(file, position, limit):
        if header.max_timestamp < timestamp_ms or header.next_offset <= start_offset:
            continue
        check_body(batch, 0, header)
        try:
            columns = decode_columns(batch, 0, header)
        except (ModuleNotFoundError, ProtocolError):  # an older daemon took it without a look into it
            return max(header.base_offset, start_offset), header.max_timestamp
        if header.attributes & Attributes.LOG_APPEND_TIME:  # the broker's clock stands for all records
            for delta in columns.offset_deltas():
                if header.base_offset + delta >= start_offset:
                    return header.base_offset + delta, header.max_timestamp
            continue
        for delta, timestamp in zip(columns.offset_deltas(), columns.timestamps_ms(), strict=True):
            if timestamp >= timestamp_ms and header.base_offset + delta >= start_offset:
                return header.base_offset + delta, timestamp
    return None
