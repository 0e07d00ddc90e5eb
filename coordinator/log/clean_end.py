"""``clean-end``: what a scan of the active segment would find, written down when a log is closed, so that the next open need
not read the segment.

It holds the segment's base offset, next offset and size, its index, its largest timestamp, the latest time of an append and
what is remembered of producers at its end. It is written when everything in the log is on disk and nothing is appended any
more, before the checkpoint. ``recovery`` believes it when all of this holds, and scans otherwise:

- its checksum is right, and it is about the last segment there is;
- the file has just the size it names;
- the checkpoint names just the same end;
- where its last index entry points, the file has the header of a batch of that offset.

**Nothing has to take it back before the next append.** A segment only grows: bytes that were durable once are never written
again, and never cut off but by a truncation, or by a recovery that finds damage in them. The bytes below ``size`` were
durable when this was written. So:

- A segment that has grown has another size, and is scanned. One that has this size again, since its tail was torn and cut
  off, or an append was refused, has the bytes that it had: what is said of them is still right.
- The same size with other bytes takes a cut below it and appends up to it. A scan that cuts there removes this file first,
  and a log that was truncated is opened anew before anything is appended: it has another size then, and is scanned. A
  power cut may bring the name back while the directory has not been synced. But this file is believed only with a
  checkpoint of the same end, that checkpoint is written after the cut, and writing it syncs the directory.
- A directory that is made anew begins without files, and within a log the base offsets of durable segments only rise, but
  for truncations. So no other segment has this base offset.

For the same reasons it needs no sync of its own. A power cut soon after a stop may leave it torn, older or missing: then the
checksum, the size or the checkpoint does not match, and the segment is scanned.

A log that nothing is appended to keeps it for as long as that lasts, through crashes too. An empty segment needs none.

Damage of the segment's bytes is then found as in closed segments: when they are read.
"""

from __future__ import annotations

from array import array
from dataclasses import dataclass
from typing import Final

from coordinator.filesystem.storage import File, Storage
from coordinator.log.checkpoints import ChecksumError, decode_integers, encode_integers
from coordinator.log.index import SegmentEnd, SparseIndex, index_from, with_none_aborted
from coordinator.log.producer_snapshots import (
    WITH_KEPT_EPOCHS,
    WITHOUT_KEPT_EPOCHS,
    WITHOUT_TRANSACTIONS,
    format_of,
    snapshot_from,
    snapshot_integers,
)
from coordinator.log.producers import ProducerState, Snapshot
from coordinator.log.segment import Segment
from coordinator.log_output import get_logger
from protocol.errors import ProtocolError
from protocol.record_batch import HEADER_BYTES, read_header

log = get_logger()

CLEAN_END: Final = "clean-end"
_MAGICS: Final = {WITH_KEPT_EPOCHS: b"CHN3", WITHOUT_KEPT_EPOCHS: b"CHN2"}
"""By the format of its producers."""
_OLDER_MAGIC: Final = b"CHN1"
"""As it was before transactions were noted: those that are open, and those that were aborted."""


@dataclass(frozen=True, slots=True)
class CleanEnd:
    """What is known of the active segment and of producers at its end."""

    segment: SegmentEnd
    index: SparseIndex
    producers: list[tuple[int, ProducerState]]


def end_of(segment: Segment) -> SegmentEnd:
    """The end of an active segment as it is now."""
    return SegmentEnd(segment.base_offset, segment.next_offset, segment.size, segment.max_timestamp, segment.last_ms)


def write_clean_end(storage: Storage, directory: str, end: SegmentEnd, index: SparseIndex, producers: Snapshot) -> None:
    """Writes the file, without a sync. What it names must be durable. Raises ``OSError``; half a file is not believed."""
    entries = index.integers(end.base_offset, end.next_offset, end.end_position, end.last_ms)
    numbers = array("q", (len(entries),)) + entries + array("q", snapshot_integers(producers))
    path = f"{directory}/{CLEAN_END}"
    if storage.exists(path):  # made anew, as ext4 writes out a file that was truncated when it is closed
        storage.remove(path)
    file = storage.open(path, create=True)
    try:
        file.append([encode_integers(_MAGICS[format_of(producers)], numbers)])
    finally:
        file.close()


def decode_clean_end(data: bytes, interval_bytes: int) -> CleanEnd:
    """What ``write_clean_end`` wrote. Raises ``ChecksumError`` when it is another file, cut off or damaged."""
    older = data[:4] == _OLDER_MAGIC
    form = WITH_KEPT_EPOCHS if data[:4] == _MAGICS[WITH_KEPT_EPOCHS] else WITHOUT_KEPT_EPOCHS
    numbers = decode_integers(_OLDER_MAGIC if older else _MAGICS[form], data)
    if not numbers or not 0 <= numbers[0] < len(numbers):
        raise ChecksumError(f"it holds {len(numbers)} numbers")
    count = numbers[0]
    entries = numbers[1 : 1 + count]
    end, index = index_from(with_none_aborted(entries) if older else entries, interval_bytes)
    producers = snapshot_from(numbers[1 + count :], WITHOUT_TRANSACTIONS if older else form)
    return CleanEnd(end, index, producers)


def read_clean_end(storage: Storage, directory: str, interval_bytes: int) -> CleanEnd | None:
    """What the file says; None, with a line in the daemon's log, when it is not whole."""
    try:
        return decode_clean_end(storage.read_file(f"{directory}/{CLEAN_END}"), interval_bytes)
    except ChecksumError as error:
        log.info("clean_end_ignored", directory=directory, reason=str(error))
        return None


def holds(clean: CleanEnd, file: File, base_offset: int, checkpoint: tuple[int, int, int]) -> bool:
    """Whether the active segment that begins at ``base_offset`` is as ``clean`` says.

    ``checkpoint`` is the active segment's base offset and size, and the log's end, as the checkpoint has them.
    """
    end = clean.segment
    if end.base_offset != base_offset or file.size() != end.end_position:
        return False
    if checkpoint != end.place:
        return False
    offset, position = clean.index.last_entry() or (base_offset, 0)
    try:
        return read_header(file.read(position, HEADER_BYTES)).base_offset == offset
    except ProtocolError:
        return False
