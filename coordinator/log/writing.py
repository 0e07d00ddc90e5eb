"""What one group commit does to the disk: blocking, in the pool, without touching the open log's state.

A round writes one chunk: batches that go into one segment with one write and one sync. It returns what it did or raises
one of two errors, and the event loop's thread draws the conclusions.
"""

from __future__ import annotations

import errno
from dataclasses import dataclass

from coordinator.log.append_queue import Chunk
from coordinator.log.config import LogConfig
from coordinator.log.index import SparseIndex
from coordinator.log.producer_snapshots import write_snapshot
from coordinator.log.recovery import Checkpoint, write_checkpoint, write_leader_epochs
from coordinator.log.segment import INDEX_SUFFIX, LOG_SUFFIX, PRODUCERS_SUFFIX, Segment, file_name
from coordinator.storage import File, Storage
from protocol.record_batch import HEADER_BYTES, placed


class WriteRefusedError(Exception):
    """The disk took nothing of this round. ``usable`` tells whether the file is as it was before."""

    def __init__(self, reason: str, usable: bool) -> None:
        super().__init__(reason)
        self.usable = usable


class SyncFailedError(Exception):
    """A sync failed: nobody knows what is on disk, and asking again would not tell."""


@dataclass(frozen=True, slots=True)
class Round:
    """Everything a round needs, copied so that the log may go on meanwhile."""

    storage: Storage
    directory: str
    config: LogConfig
    segment: Segment
    index: SparseIndex
    chunk: Chunk
    start_offset: int
    durable_offset: int
    leader_epoch: int
    leader_epochs: list[tuple[int, int]] | None
    """The new list if this epoch appends for the first time."""


def write_round(work: Round) -> Segment:
    """Writes the chunk and makes it durable if the configuration says so. Returns the segment it went into.

    Raises ``WriteRefusedError`` after having cut the file back, ``SyncFailedError`` when a sync failed.
    """
    segment = work.segment
    try:
        if work.leader_epochs is not None:
            write_leader_epochs(work.storage, work.directory, work.leader_epochs)
        if work.chunk.roll:
            segment = _roll(work)
    except OSError as error:
        if error.errno == errno.EIO:  # a sync may be what failed, and only a restart finds out what is there
            raise SyncFailedError(str(error)) from error
        raise WriteRefusedError(str(error), usable=True) from error
    assert segment.file is not None
    try:
        _append(work, segment, segment.file)
    except BaseException:
        if segment is not work.segment:
            segment.file.close()
        raise
    return segment


def _append(work: Round, segment: Segment, file: File) -> None:
    pieces: list[bytes | memoryview] = []
    durable_offset = work.chunk.base_offset if work.chunk.roll else work.durable_offset
    for base_offset, header, batch in work.chunk.batches:
        # Stamped now and not when it was appended: only now is it known what the last round has made durable.
        pieces.append(placed(header, base_offset, work.leader_epoch, base_offset - durable_offset).pack())
        pieces.append(memoryview(batch)[HEADER_BYTES:])
    try:
        if pieces:  # a roll may come alone
            file.append(pieces)
    except OSError as error:
        raise WriteRefusedError(str(error), usable=_cut_back(file, segment.size)) from error
    if work.config.flush == "ack":
        sync(file)


def sync(file: File) -> None:
    """Syncs, or raises ``SyncFailedError``."""
    try:
        file.sync()
    except OSError as error:
        raise SyncFailedError(str(error)) from error


def _roll(work: Round) -> Segment:
    """Closes the active segment and makes the next one.

    The old one is durable and indexed before the new one exists, so at most the last segment of a log is ever torn. Done
    again after a failure half-way, with the same base offset, it picks up what is there.
    """
    old = work.segment
    assert old.file is not None
    sync(old.file)
    index = work.index.encode(old.base_offset, old.next_offset, old.size, old.last_ms)
    work.storage.write_file(f"{work.directory}/{file_name(old.base_offset, INDEX_SUFFIX)}", index)
    write_snapshot(work.storage, work.directory, work.chunk.base_offset, work.chunk.producers)
    segment = Segment(f"{work.directory}/{file_name(work.chunk.base_offset, LOG_SUFFIX)}", work.chunk.base_offset)
    segment.file = work.storage.open(segment.path, create=True)
    try:
        work.storage.sync_directory(work.directory)
        checkpoint = Checkpoint(work.start_offset, segment.base_offset, 0, segment.base_offset)
        write_checkpoint(work.storage, work.directory, checkpoint)
        earlier = f"{work.directory}/{file_name(old.base_offset, PRODUCERS_SUFFIX)}"
        if work.storage.exists(earlier):
            work.storage.remove(earlier)
    except BaseException:
        segment.file.close()
        raise
    return segment


def _cut_back(file: File, size: int) -> bool:
    try:
        file.truncate(size)
    except OSError:
        return False
    sync(file)
    return True
