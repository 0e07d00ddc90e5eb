"""What one group commit does to the disk: blocking, in the pool, without touching the open log's state.

A round writes one chunk: batches that go into one segment with one write and one sync. It returns what it did or raises
one of two errors, and the event loop's thread draws the conclusions.
"""

from __future__ import annotations

from dataclasses import dataclass

from coordinator.filesystem.reserve import Reserve
from coordinator.filesystem.storage import File, Storage, WriteInDoubtError
from coordinator.log.append_queue import Chunk
from coordinator.log.config import LogConfig
from coordinator.log.index import SparseIndex
from coordinator.log.producer_snapshots import write_snapshot
from coordinator.log.recovery import Checkpoint, write_checkpoint, write_leader_epochs
from coordinator.log.segment import INDEX_SUFFIX, LOG_SUFFIX, PRODUCERS_SUFFIX, Segment, file_name
from coordinator.log_output import get_logger
from protocol.record_batch import HEADER_BYTES, placed

log = get_logger()


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
    reserve: Reserve
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
            segment = _roll_to_free(work) if work.chunk.frees_room else _roll(work)
    except WriteInDoubtError as error:
        raise SyncFailedError(str(error)) from error
    except SyncFailedError:
        raise
    except Exception as error:
        raise refused(error, usable=True) from error
    assert segment.file is not None
    try:
        _append(work, segment, segment.file)
    except BaseException:
        if segment is not work.segment:
            segment.file.close()
        raise
    return segment


def _append(work: Round, segment: Segment, file: File) -> None:
    try:
        if pieces := _pieces(work):  # a roll may come alone
            file.append(pieces)
    except Exception as error:
        raise refused(error, usable=_cut_back(file, segment.size)) from error
    if work.config.flush == "ack":
        sync(file)


def _pieces(work: Round) -> list[bytes | memoryview]:
    pieces: list[bytes | memoryview] = []
    durable_offset = work.chunk.base_offset if work.chunk.roll else work.durable_offset
    for base_offset, header, batch in work.chunk.batches:
        # Stamped now and not when it was appended: only now is it known what the last round has made durable.
        pieces.append(placed(header, base_offset, work.leader_epoch, base_offset - durable_offset).pack())
        pieces.append(memoryview(batch)[HEADER_BYTES:])
    return pieces


def refused(error: Exception, usable: bool) -> WriteRefusedError:
    """What is raised when ``error`` kept a round from being written: of the disk, or of this program.

    A batch that meets a fault of this program is refused as one that the disk refuses, so that the log serves on.
    """
    if isinstance(error, OSError):
        return WriteRefusedError(str(error), usable)
    log.error("writing to a log failed unexpectedly", exc_info=error)
    return WriteRefusedError(f"an unexpected error, which the daemon's log has: {error!r}", usable)


def sync(file: File) -> None:
    """Syncs, or raises ``SyncFailedError``."""
    try:
        file.sync()
    except OSError as error:
        raise SyncFailedError(str(error)) from error


def _roll_to_free(work: Round) -> Segment:
    """As ``_roll``, of a segment that is about to be removed. On a full disk it gives up the reserve, and the index."""
    try:
        return _roll(work)
    except OSError as error:
        if not work.reserve.release_for(error):
            raise
    return _roll(work, indexed=False)


def _roll(work: Round, indexed: bool = True) -> Segment:
    """Closes the active segment and makes the next one.

    The old one is durable and indexed before the new one exists, so at most the last segment of a log is ever torn. Done
    again after a failure half-way, with the same base offset, it picks up what is there.
    """
    old = work.segment
    assert old.file is not None
    sync(old.file)
    if indexed:  # or else it is made anew where it is needed
        index = work.index.encode(old.base_offset, old.next_offset, old.size, old.last_ms)
        work.storage.write_file(f"{work.directory}/{file_name(old.base_offset, INDEX_SUFFIX)}", index)
    write_snapshot(work.storage, work.directory, work.chunk.base_offset, work.chunk.producers)
    segment = Segment(f"{work.directory}/{file_name(work.chunk.base_offset, LOG_SUFFIX)}", work.chunk.base_offset)
    segment.file = work.storage.open(segment.path, create=True)
    try:
        _sync_directory(work)
        checkpoint = Checkpoint(work.start_offset, segment.base_offset, 0, segment.base_offset)
        write_checkpoint(work.storage, work.directory, checkpoint)
        earlier = f"{work.directory}/{file_name(old.base_offset, PRODUCERS_SUFFIX)}"
        if work.storage.exists(earlier):
            work.storage.remove(earlier)
    except BaseException:
        segment.file.close()
        raise
    return segment


def _sync_directory(work: Round) -> None:
    try:
        work.storage.sync_directory(work.directory)
    except OSError as error:
        raise SyncFailedError(str(error)) from error


def _cut_back(file: File, size: int) -> bool:
    try:
        file.truncate(size)
    except OSError:
        return False
    sync(file)
    return True
