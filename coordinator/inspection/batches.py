"""All batches of a segment's file, past what is damaged; memory is bounded by a chunk and the largest batch."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from coordinator.filesystem.storage import File
from coordinator.log.scan import CHUNK_BYTES, walk
from protocol.errors import ProtocolError
from protocol.record_batch import HEADER_BYTES, MAGIC, BatchHeader, check_body, read_header


class Batch(NamedTuple):
    """A whole batch. ``content`` is valid until the next one."""

    position: int
    header: BatchHeader
    content: memoryview


class Damage(NamedTuple):
    """What is no whole batch at its place: the bytes from ``position`` to below ``end``, which may be none.

    ``offset`` is the one that belongs there, None where that is not known.
    """

    position: int
    end: int
    offset: int | None
    why: str


def batches(file: File, size: int, base_offset: int | None) -> Iterator[Batch | Damage]:
    """What is in the first ``size`` bytes, which begin with ``base_offset``, in the order of the file.

    Every checksum is compared, and that offsets follow one another. Behind a header that is damaged the next whole batch is
    looked for; a part of the disk that cannot be read is passed over.
    """
    position, offset = 0, base_offset
    while position < size:
        try:
            for at, header, content in walk(file, position, size):
                if offset is not None and header.base_offset != offset:
                    yield Damage(
                        at, at, offset, f"it holds a batch of offset {header.base_offset} where {offset} belongs"
                    )
                try:
                    check_body(content, 0, header)
                except ProtocolError as error:
                    yield Damage(at, at + header.length, header.base_offset, str(error))
                else:
                    yield Batch(at, header, content)
                position, offset = at + header.length, header.next_offset
        except ProtocolError as error:
            end = _next_whole(file, position + 8, size, offset or 0)
            yield Damage(position, end, offset, str(error))
            position, offset = end, None
        except OSError as error:
            end = _next_whole(file, position + CHUNK_BYTES, size, offset or 0)
            yield Damage(position, end, offset, f"the disk does not give it: {error}")
            position, offset = end, None


def _next_whole(file: File, position: int, size: int, offset: int) -> int:
    """Where the next whole batch of ``offset`` or a later one begins; ``size`` where there is none."""
    while size - position >= HEADER_BYTES:
        try:
            buffer = file.read(position, min(CHUNK_BYTES, size - position))
        except OSError:  # the caller says which part of the file that is
            position += CHUNK_BYTES
            continue
        if len(buffer) < HEADER_BYTES:
            break
        start = buffer.find(MAGIC)
        while 0 <= start <= len(buffer) - HEADER_BYTES:
            if (position + start) % 8 == 0 and _is_whole(file, position + start, buffer, start, offset):
                return position + start
            start = buffer.find(MAGIC, start + 1)
        position += len(buffer) - HEADER_BYTES + 1
    return size


def _is_whole(file: File, position: int, buffer: bytes, start: int, offset: int) -> bool:
    try:
        header = read_header(buffer, start)
        if header.base_offset < offset:
            return False
        check_body(file.read(position, header.length), 0, header)
    except (ProtocolError, OSError):
        return False
    return True
