"""Walking over the batches of a file, telling a torn tail from damage, and making a lost index anew.

A write that was under way when the machine stopped leaves a *torn tail*: from some point on nothing is what it should be,
and nothing of it was ever acknowledged. *Damage* is everything else. The difference is proven by the durable gap in the
batch headers: a whole batch behind the hole that was stamped when the hole's offsets were already durable.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Final

from coordinator.filesystem.storage import File, Storage
from coordinator.log.checkpoints import ChecksumError
from coordinator.log.config import LogConfig
from coordinator.log.errors import LogDamagedError
from coordinator.log.index import SparseIndex, decode_index
from coordinator.log.segment import INDEX_SUFFIX, Segment, file_name
from coordinator.log_output import get_logger
from protocol.control_batch import TransactionEnd, decode_control_batch
from protocol.errors import ProtocolError
from protocol.record_batch import HEADER_BYTES, MAGIC, UNKNOWN_GAP, Attributes, BatchHeader, check_body, read_header

log = get_logger()

CHUNK_BYTES: Final = 1024 * 1024
"""How much of a file is read at once; memory is bounded by this and the largest batch."""

_CONTROL: Final = int(Attributes.CONTROL)

Note = Callable[[BatchHeader, Sequence[TransactionEnd]], None]
"""Is told of a batch in the log, and which transactions it ends."""


@dataclass(frozen=True, slots=True)
class Hole:
    """Where a walk ended early: what was expected there, and where whole batches may go on."""

    position: int
    offset: int
    why: str
    resume: int


@dataclass(frozen=True, slots=True)
class Scan:
    """What a scan with checksums found: whole batches up to ``position`` and ``next_offset``, then perhaps a hole."""

    index: SparseIndex
    position: int
    next_offset: int
    hole: Hole | None


class MisplacedBatchError(Exception):
    """A whole batch that no crash writes: its header claims another offset than the one at its place, or it is a control
    batch without end markers."""


def walk(
    file: File, position: int, end: int, chunk_bytes: int = CHUNK_BYTES
) -> Iterator[tuple[int, BatchHeader, memoryview]]:
    """Position, header and bytes of each batch from ``position`` to ``end``. Bodies are not checked.

    Raises ``ProtocolError`` for a damaged header or a batch that is cut off by ``end``. The bytes are valid until the
    next step.
    """
    while position < end:
        asked = min(chunk_bytes, end - position)
        buffer = memoryview(file.read(position, asked))
        start = 0
        while len(buffer) - start >= HEADER_BYTES:
            header = read_header(buffer, start)
            if start + header.length > len(buffer):
                break
            yield position + start, header, buffer[start : start + header.length]
            start += header.length
        if start == 0:  # not one whole batch in the chunk
            length = read_header(buffer).length
            if length > end - position or length <= asked:
                raise ProtocolError(f"a batch of {length} bytes is cut off after {min(end - position, len(buffer))}")
            chunk_bytes = length
        position += start


def ends_in(batch: memoryview, header: BatchHeader) -> Sequence[TransactionEnd]:
    """The transactions that a whole batch ends: none, unless it is a control batch.

    Raises ``ProtocolError`` for a control batch that does not decode.
    """
    return decode_control_batch(batch, 0, header) if header.attributes & _CONTROL else ()


def scan(file: File, base_offset: int, size: int, interval_bytes: int, note: Note | None = None) -> Scan:
    """Reads a segment from its start, checking every checksum and that offsets follow one another.

    Tells ``note`` of each whole batch. Stops at the first hole. Raises ``MisplacedBatchError`` for a batch whose header is
    whole but not at its place.
    """
    index = SparseIndex(interval_bytes)
    position, offset = 0, base_offset
    try:
        for found, header, batch in walk(file, 0, size):
            if header.base_offset != offset:
                raise MisplacedBatchError(
                    f"position {found} holds a batch of offset {header.base_offset} where {offset} belongs"
                )
            try:
                check_body(batch, 0, header)
            except ProtocolError as error:
                return Scan(index, position, offset, Hole(position, offset, str(error), found + header.length))
            index.add(offset, found, header.max_timestamp)
            try:
                ends = ends_in(batch, header)
            except ProtocolError as error:
                raise MisplacedBatchError(f"position {found}: {error}") from error
            if ends:
                index.aborted.note_ends(offset, ends)
            if note is not None:
                note(header, ends)
            position, offset = found + header.length, header.next_offset
    except ProtocolError as error:
        return Scan(index, position, offset, Hole(position, offset, str(error), _after(file, position)))
    return Scan(index, position, offset, None)


def _after(file: File, position: int) -> int:
    """Where the next batch may begin: behind this one if at least its header is whole, for its body may hold anything."""
    try:
        return position + read_header(file.read(position, HEADER_BYTES)).length
    except ProtocolError:
        return position + 8


def proof_of_damage(file: File, hole: Hole, size: int) -> str | None:
    """Why the hole cannot be a torn tail, or ``None`` if nothing speaks against one.

    Looks through the rest of the file for a whole batch that was stamped when offsets of the hole were durable.
    """
    position = hole.resume
    while size - position >= HEADER_BYTES:
        buffer = file.read(position, min(CHUNK_BYTES, size - position))
        start = buffer.find(MAGIC)
        while 0 <= start <= len(buffer) - HEADER_BYTES:
            proof = _proof_in(file, position + start, buffer, start, hole)
            if proof is not None:
                return proof
            start = buffer.find(MAGIC, start + 1)
        position += max(len(buffer) - HEADER_BYTES + 1, 1)
    return None


def _proof_in(file: File, position: int, buffer: bytes, start: int, hole: Hole) -> str | None:
    if (position - hole.position) % 8:
        return None  # batches are multiples of eight bytes: this is the data of a record
    try:
        header = read_header(buffer, start)
        if header.durable_gap == UNKNOWN_GAP or header.base_offset - header.durable_gap <= hole.offset:
            return None
        check_body(file.read(position, header.length), 0, header)
    except ProtocolError:
        return None  # no batch after all, or itself not whole
    return (
        f"offset {hole.offset} is unreadable ({hole.why}), although the whole batch of offset {header.base_offset} "
        f"behind it, at position {position}, was written when everything below "
        f"{header.base_offset - header.durable_gap} was on disk"
    )


def scan_segment(
    directory: str,
    segment: Segment,
    file: File,
    size: int,
    config: LogConfig,
    note: Note | None = None,
) -> Scan:
    """As ``scan``. Raises ``LogDamagedError`` for a batch that is not at its place, naming the segment."""
    try:
        return scan(file, segment.base_offset, size, config.index_interval_bytes, note)
    except MisplacedBatchError as error:
        raise LogDamagedError(directory, segment.path, str(error)) from error


def load_index(
    storage: Storage, directory: str, segment: Segment, file: File, next_offset: int, config: LogConfig
) -> SparseIndex:
    """The index of a closed segment; a missing, damaged or wrong one is rebuilt from the segment and written again.

    Raises ``LogDamagedError`` if the segment itself does not hold ``[base_offset, next_offset)``, whole.
    """
    path = f"{directory}/{file_name(segment.base_offset, INDEX_SUFFIX)}"
    size = file.size()
    try:
        end, index = decode_index(storage.read_file(path), config.index_interval_bytes)
        if (end.base_offset, end.next_offset, end.end_position) == (segment.base_offset, next_offset, size):
            entry = index.last_entry()
            if entry is None or read_header(file.read(entry[1], HEADER_BYTES)).base_offset == entry[0]:
                segment.last_ms = max(segment.last_ms, end.last_ms)
                return index
        why = f"it describes offsets {end.base_offset} to {end.next_offset} in {end.end_position} bytes"
    except FileNotFoundError:
        why = "it is missing"
    except (ChecksumError, ProtocolError) as error:
        why = str(error)
    log.warning("index_rebuilt", directory=directory, segment=segment.path, reason=why)
    found = scan_segment(directory, segment, file, size, config)
    if found.hole is not None:
        raise LogDamagedError(directory, f"{segment.path}, position {found.hole.position}", found.hole.why)
    if found.next_offset != next_offset:
        why = f"the segment ends at offset {found.next_offset}, but the next one begins at {next_offset}"
        raise LogDamagedError(directory, f"{segment.path}, position {size}", why)
    try:
        storage.write_file(path, found.index.encode(segment.base_offset, next_offset, size, segment.last_ms))
    except OSError as error:  # the log can be read without it: it will be rebuilt once more
        log.warning("index_not_written", directory=directory, segment=segment.path, error=str(error))
    return found.index
