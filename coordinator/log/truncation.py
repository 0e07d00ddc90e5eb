"""Cutting a log back, and beginning it anew elsewhere: what a follower does whose records are not its leader's. Blocking.

Nothing else may use the directory meanwhile, and what is there afterwards is opened as at a start. A kill between any two
steps leaves a log that recovery opens. It may hold more than was to be kept then: the next fetch tells, and it is cut again.

- What is known of the end goes first: the index of the segment that becomes active, and the checkpoint is lowered. Behind a
  cut they would ask for records that are gone.
- Segments go from the last to the first, each durably before the one before it, so that none is ever missing in between.
- A checkpoint with a start behind the end is a log that is beginning anew at that start: recovery finishes that.
"""

from __future__ import annotations

from bisect import bisect_right

from coordinator.filesystem.storage import File, Storage
from coordinator.log.checkpoints import (
    CLEANER_POINT,
    LEADER_EPOCHS,
    Checkpoint,
    read_cleaner_point,
    read_leader_epochs,
    write_checkpoint,
    write_cleaner_point,
    write_leader_epochs,
)
from coordinator.log.errors import LogDamagedError
from coordinator.log.leader_epochs import LeaderEpochs
from coordinator.log.producer_snapshots import write_snapshot
from coordinator.log.producers import Snapshot
from coordinator.log.scan import walk
from coordinator.log.segment import INDEX_SUFFIX, LOG_SUFFIX, PRODUCERS_SUFFIX, base_offset_of, file_name
from coordinator.log_output import get_logger
from protocol.errors import ProtocolError

log = get_logger()


def truncate(storage: Storage, directory: str, offset: int, start_offset: int) -> None:
    """Gives up what begins at ``offset`` or covers it, durably: a batch is kept whole or not at all.

    ``start_offset`` is where the log begins, ``offset`` is not below that. When nothing of the log would be left but a batch
    that begins before it, the log begins anew at its start. Raises ``LogDamagedError`` when a header before ``offset`` is
    damaged, ``WriteInDoubtError`` and another ``OSError``; some of it may be done then.
    """
    bases = _bases(storage, directory)
    base = bases[bisect_right(bases, offset) - 1]
    file = storage.open(_path(directory, base, LOG_SUFFIX))
    try:
        position, end = _place(file, directory, base, offset)
        if end >= start_offset:
            _cut(storage, directory, bases, Checkpoint(start_offset, base, position, end), file)
    finally:
        file.close()
    if end < start_offset:
        begin_anew(storage, directory, start_offset, start_offset)


def begin_anew(storage: Storage, directory: str, offset: int, start_offset: int, producers: Snapshot = ()) -> None:
    """Makes an empty log that begins at ``offset`` of one that began at ``start_offset``; durable, too. Raises as
    ``truncate``. ``producers`` are those that wrote below ``offset``, as far as they are known.
    """
    bases = _bases(storage, directory)
    base, start = bases[0], max(offset, start_offset)
    file = storage.open(_path(directory, base, LOG_SUFFIX))
    try:
        _cut(storage, directory, bases, Checkpoint(start, base, 0, base), file)
    finally:
        file.close()
    if storage.exists(f"{directory}/{LEADER_EPOCHS}") and read_leader_epochs(storage, directory):
        write_leader_epochs(storage, directory, [])
    if offset != base:
        first = min(offset, base)  # the file has either name until the rename is durable
        write_checkpoint(storage, directory, Checkpoint(start, first, 0, first))
        write_snapshot(storage, directory, offset, producers)
        storage.rename(_path(directory, base, LOG_SUFFIX), _path(directory, offset, LOG_SUFFIX))
        storage.sync_directory(directory)
    write_checkpoint(storage, directory, Checkpoint(offset, offset, 0, offset))
    write_cleaner_point(storage, directory, offset)
    log.info("log_begun_anew", directory=directory, offset=offset)


def _cut(storage: Storage, directory: str, bases: list[int], kept: Checkpoint, file: File) -> None:
    """Cuts the log to what ``kept`` says; ``file`` is the segment that becomes active."""
    _remove(storage, _path(directory, kept.active_base_offset, INDEX_SUFFIX))
    file.sync()  # the checkpoint may name only what is durable
    write_checkpoint(storage, directory, kept)  # and syncs the directory
    cleaned = (
        storage.exists(f"{directory}/{CLEANER_POINT}") and read_cleaner_point(storage, directory) > kept.end_offset
    )
    if cleaned:
        write_cleaner_point(storage, directory, kept.end_offset)
    for base in reversed([base for base in bases if base > kept.active_base_offset]):
        for suffix in (PRODUCERS_SUFFIX, INDEX_SUFFIX, LOG_SUFFIX):
            _remove(storage, _path(directory, base, suffix))
        storage.sync_directory(directory)
    before = file.size()
    file.truncate(kept.active_size)
    file.sync()
    if storage.exists(f"{directory}/{LEADER_EPOCHS}"):
        epochs = LeaderEpochs(known := read_leader_epochs(storage, directory))
        epochs.cut(kept.end_offset)
        if epochs.entries != known:
            write_leader_epochs(storage, directory, epochs.entries)
    log.info(
        "log_truncated", directory=directory, end_offset=kept.end_offset, bytes_cut=before - kept.active_size,
        segments_removed=sum(base > kept.active_base_offset for base in bases),
    )  # fmt: skip


def _place(file: File, directory: str, base: int, offset: int) -> tuple[int, int]:
    """Position and base offset of the batch that covers ``offset``, or the end of the segment."""
    position, end = 0, base
    try:
        for position, header, _ in walk(file, 0, file.size()):
            if header.next_offset > offset:
                return position, header.base_offset
            end = header.next_offset
    except ProtocolError as error:
        where = f"{_path(directory, base, LOG_SUFFIX)}, position {position}"
        raise LogDamagedError(directory, where, f"it cannot be cut to offset {offset}: {error}") from error
    return file.size(), end


def _bases(storage: Storage, directory: str) -> list[int]:
    names = storage.list(directory)
    return sorted(base for name in names if (base := base_offset_of(name, LOG_SUFFIX)) is not None)


def _path(directory: str, base: int, suffix: str) -> str:
    return f"{directory}/{file_name(base, suffix)}"


def _remove(storage: Storage, path: str) -> None:
    if storage.exists(path):
        storage.remove(path)
