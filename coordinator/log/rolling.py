"""Closing the active segment and beginning the next one: blocking, in the pool of the disk.

The old segment is durable and indexed before the new one exists, so at most the last segment of a log is ever torn. A roll
that failed half-way is done again with the same base offset, and picks up what is there.
"""

from __future__ import annotations

from dataclasses import dataclass

from coordinator.filesystem.reserve import Reserve
from coordinator.filesystem.storage import Storage, WriteInDoubtError, in_doubt
from coordinator.log.checkpoints import Checkpoint, write_checkpoint
from coordinator.log.producer_snapshots import remove_snapshots, write_snapshot
from coordinator.log.producers import Snapshot
from coordinator.log.segment import INDEX_SUFFIX, LOG_SUFFIX, Segment, file_name


@dataclass(frozen=True, slots=True)
class Roll:
    """What a new segment begins with."""

    base_offset: int
    producers: Snapshot
    """What is remembered of producers before it."""
    frees_room: bool = False
    """Whether retention removes the segment before it."""


def roll_segment(
    storage: Storage, reserve: Reserve, directory: str, old: Segment, roll: Roll, bounds: tuple[int, int]
) -> Segment:
    """Closes ``old`` and returns the segment that follows it, which is empty and open.

    ``bounds`` are where the log begins, and the high watermark. The snapshots of segments before the one that holds this go,
    for the log is not cut below it.

    On a full disk a roll that frees room gives up the reserve, and the index of the old segment. Raises
    ``WriteInDoubtError`` when it is unknown what is on disk, another ``OSError`` when the disk refuses.
    """
    try:
        return _roll(storage, directory, old, roll, bounds)
    except OSError as error:
        if not (roll.frees_room and reserve.release_for(error)):
            raise
    return _roll(storage, directory, old, roll, bounds, indexed=False)


def _roll(
    storage: Storage, directory: str, old: Segment, roll: Roll, bounds: tuple[int, int], indexed: bool = True
) -> Segment:
    assert old.file is not None
    assert old.index is not None
    old.file.sync()
    if indexed:  # or else it is made anew where it is needed
        index = old.index.encode(old.base_offset, old.next_offset, old.size, old.last_ms)
        storage.write_file(f"{directory}/{file_name(old.base_offset, INDEX_SUFFIX)}", index)
    write_snapshot(storage, directory, roll.base_offset, roll.producers)
    segment = Segment(f"{directory}/{file_name(roll.base_offset, LOG_SUFFIX)}", roll.base_offset)
    segment.file = storage.open(segment.path, create=True)
    try:
        try:
            storage.sync_directory(directory)
        except WriteInDoubtError:
            raise
        except OSError as error:
            raise in_doubt(directory, error) from error
        start_offset, high_watermark = bounds
        write_checkpoint(storage, directory, Checkpoint(start_offset, roll.base_offset, 0, roll.base_offset))
        remove_snapshots(storage, directory, storage.list(directory), high_watermark)
    except BaseException:
        segment.file.close()
        raise
    return segment
