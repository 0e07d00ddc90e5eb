"""Opening a partition's directory: what is whole is served, a torn tail is cut, anything else is damage.

What is promised after a crash, of the process or of the power, when the disk has kept what it said that it had: nothing
that was acknowledged is lost. When the disk has not, or a file was changed by hand:

- A batch in a segment that is scanned is refused, with its partition, if it is damaged and a whole one follows that was
  written when it was durable. Nothing follows the last group commit, so damage in just that is taken for a torn tail.
- Closed segments, and the active one of a log that was closed cleanly (``clean_end``), are not scanned. Damage in them is
  found when it is read: by the daemon in a header, by the reader in a body. The partition serves what is whole.
- A file that *ends too early* shows no hole. Everything that the checkpoint names (``checkpoints``) is missed, and the
  partition is refused. What was appended after it, at most about a minute or 16 MiB and what was under way, is lost
  unnoticed.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from itertools import pairwise

from coordinator.filesystem.storage import File, Storage, WriteInDoubtError
from coordinator.log.checkpoints import (
    CHECKPOINT,
    CLEANER_POINT,
    LEADER_EPOCHS,
    NOTHING,
    Checkpoint,
    ChecksumError,
    read_checkpoint,
    read_cleaner_point,
    read_leader_epochs,
    write_checkpoint,
)
from coordinator.log.clean_end import CLEAN_END, CleanEnd, holds, read_clean_end
from coordinator.log.config import LogConfig
from coordinator.log.directories import tidied
from coordinator.log.errors import LogDamagedError
from coordinator.log.index import SegmentEnd, decode_index
from coordinator.log.leader_epochs import LeaderEpochs
from coordinator.log.producer_snapshots import noting, recover_producers, remove_snapshots
from coordinator.log.producers import Producers
from coordinator.log.scan import Note, Scan, load_index, proof_of_damage, scan_segment
from coordinator.log.segment import (
    INDEX_SUFFIX,
    LOG_SUFFIX,
    Segment,
    base_offset_of,
    file_name,
    remove_segments,
)
from coordinator.log.truncation import begin_anew
from coordinator.log_output import get_logger

log = get_logger()


@dataclass(slots=True)
class Recovered:
    """An opened log: segments in order, the last one active with its file open and its index in memory."""

    segments: list[Segment]
    checkpoint: Checkpoint | None
    start_offset: int = 0
    """Where the log begins: within the first segment, if records were deleted up to there."""
    leader_epochs: LeaderEpochs = field(default_factory=LeaderEpochs)
    clean_until: int = 0
    producers: Producers = field(default_factory=Producers)
    clean_end: SegmentEnd | None = None
    """What ``clean-end`` says, when that is so."""
    bytes_cut: int = 0
    """How many bytes of a torn tail were cut off."""


def open_directory(
    storage: Storage, directory: str, config: LogConfig, *, names_are_durable: bool = False
) -> Recovered:
    """Recovers what ``directories.make_logs`` or a log has left. Blocks; files of a log that is refused are closed again.

    Raises ``LogDamagedError`` when anything but a torn tail is wrong, a missing directory or segment included: only
    creation makes them, so they have been lost. ``WriteInDoubtError`` when it is unknown what is on disk, another
    ``OSError`` when the disk does not do its part; opening may be tried again then. A disk that is full is no reason.
    ``names_are_durable`` says that this process has made the log and synced its names.
    """
    names = tidied(storage, directory)
    if CLEAN_END not in names and not names_are_durable:
        # A process that was killed may have left names that a power cut would take, with all that is appended from now on.
        storage.sync_directory(directory)
        storage.sync_directory("")
    checkpoint = read_checkpoint(storage, directory) if CHECKPOINT in names else None
    bases = sorted(base for name in names if (base := base_offset_of(name, LOG_SUFFIX)) is not None)
    start = check_first(directory, bases, checkpoint)
    # Retention has noted where the log begins, and was cut short before it had removed what lies before.
    gone = [base for base, following in pairwise(bases) if following <= start]
    remove_segments(storage, directory, gone)
    bases = bases[len(gone) :]
    segments = [Segment(f"{directory}/{file_name(base, LOG_SUFFIX)}", base) for base in bases]
    for segment, following in pairwise(segments):
        _open_closed(storage, directory, segment, following.base_offset, config)
    remove_snapshots(storage, directory, names, bases[0])  # where the high watermark is, is not known here
    recovered = Recovered(segments, checkpoint, start)
    if CLEAN_END not in names or not _open_as_closed(storage, directory, recovered, config):
        recovered.producers = recover_producers(storage, directory, segments)
        note = noting(recovered.producers)
        recovered.bytes_cut = _open_active(storage, directory, segments[-1], checkpoint, config, note)
    if start > segments[-1].next_offset:  # a new beginning was cut short
        segments[-1].retire()
        begin_anew(storage, directory, start, start)
        return open_directory(storage, directory, config)
    try:
        if LEADER_EPOCHS in names:
            recovered.leader_epochs = epochs_of(storage, directory, start, segments[-1].next_offset)
        if CLEANER_POINT in names:
            recovered.clean_until = read_cleaner_point(storage, directory)
        _renew_checkpoint(storage, directory, recovered)
    except BaseException:
        segments[-1].retire()
        raise
    return recovered


def check_first(directory: str, bases: list[int], checkpoint: Checkpoint | None) -> int:
    """Where the log begins, whose segments begin at ``bases``. Raises ``LogDamagedError`` when its first or last is missing.

    Nothing raises the start of the log without renewing the checkpoint first, so a later start is a lost segment.
    """
    start = checkpoint.start_offset if checkpoint else 0
    if bases and bases[0] > start:
        why = f"the log starts at offset {start}, but the first segment there is begins at {bases[0]}"
        raise LogDamagedError(directory, "its first segment", why)
    if checkpoint is not None and (not bases or bases[-1] < checkpoint.active_base_offset):
        why = f"the segment that begins at offset {checkpoint.active_base_offset} is missing"
        raise LogDamagedError(directory, "its last segment", why)
    if not bases:
        raise LogDamagedError(directory, "its first segment", "there is no segment at all")
    return start


def _open_closed(storage: Storage, directory: str, segment: Segment, next_offset: int, config: LogConfig) -> None:
    file = storage.open(segment.path)
    try:
        index = load_index(storage, directory, segment, file, next_offset, config)
        segment.size = file.size()
    finally:
        file.close()
    segment.next_offset = next_offset
    segment.max_timestamp = index.max_timestamp
    segment.lowest_aborted = index.aborted.lowest_first


def _open_as_closed(storage: Storage, directory: str, recovered: Recovered, config: LogConfig) -> bool:
    """Opens the active segment as ``clean-end`` has it. Returns False, and has removed that file, when it is not so."""
    active, checkpoint = recovered.segments[-1], recovered.checkpoint or NOTHING
    clean = read_clean_end(storage, directory, config.index_interval_bytes)
    if clean is not None:
        file = storage.open(active.path)
        try:
            known = (checkpoint.active_base_offset, checkpoint.active_size, checkpoint.end_offset)
            if holds(clean, file, active.base_offset, known):
                _take_over(recovered, active, clean, file)
                return True
        finally:
            if active.file is None:
                file.close()
    storage.remove(f"{directory}/{CLEAN_END}")
    return False


def _take_over(recovered: Recovered, active: Segment, clean: CleanEnd, file: File) -> None:
    end = clean.segment
    active.size, active.next_offset, active.last_ms = end.end_position, end.next_offset, end.last_ms
    active.file, active.index, active.max_timestamp = file, clean.index, end.max_timestamp
    recovered.producers, recovered.clean_end = Producers(clean.producers), end


def _open_active(
    storage: Storage,
    directory: str,
    segment: Segment,
    checkpoint: Checkpoint | None,
    config: LogConfig,
    note: Note,
) -> int:
    """Opens the active segment, without the torn tail that it may have; returns how many bytes of that were cut off."""
    segment.file = file = storage.open(segment.path)
    try:
        size = file.size()
        found = scan_segment(directory, segment, file, size, config, note)
        proof = proof_of_damage(file, found.hole, size) if found.hole else None
        if found.hole is not None and proof is not None:
            raise LogDamagedError(directory, f"{segment.path}, position {found.hole.position}", proof)
        check_end(storage, directory, segment, found, checkpoint, config)
        if found.hole is not None:
            log.warning(
                "torn_tail_cut", directory=directory, segment=segment.path, position=found.position,
                end_offset=found.next_offset, bytes_cut=size - found.position, reason=found.hole.why,
            )  # fmt: skip
            file.truncate(found.position)
        if size:  # what was read may be in the machine's memory only: from here on it counts as durable
            file.sync()
    except BaseException:
        segment.retire()
        raise
    segment.size, segment.next_offset = found.position, found.next_offset
    segment.index, segment.max_timestamp = found.index, found.index.max_timestamp
    return size - found.position


def epochs_of(storage: Storage, directory: str, start: int, end: int) -> LeaderEpochs:
    """The leader epochs of a log. One is noted before its first record: of what begins behind the end, none was kept.

    Raises ``LogDamagedError`` when they do not rise.
    """
    entries = read_leader_epochs(storage, directory)
    if any(not (epoch < after and first < then) for (epoch, first), (after, then) in pairwise(entries)):
        raise LogDamagedError(directory, LEADER_EPOCHS, f"epochs {entries} do not rise")
    epochs = LeaderEpochs(entry for entry in entries if entry[1] <= end)
    epochs.raise_start(start)
    return epochs


def check_end(
    storage: Storage, directory: str, segment: Segment, found: Scan, checkpoint: Checkpoint | None, config: LogConfig
) -> None:
    """Neither the checkpoint nor an index that was written for this segment may know of more than there is.

    Raises ``LogDamagedError`` when one does.
    """
    known_offset, known_size = 0, 0
    if checkpoint is not None:
        known_offset = checkpoint.end_offset
        known_size = checkpoint.active_size if checkpoint.active_base_offset == segment.base_offset else 0
    index_path = f"{directory}/{file_name(segment.base_offset, INDEX_SUFFIX)}"
    if storage.exists(index_path):  # the daemon ended between closing this segment and making the next
        try:
            end, _ = decode_index(storage.read_file(index_path), config.index_interval_bytes)
            known_offset, known_size = max(known_offset, end.next_offset), max(known_size, end.end_position)
        except ChecksumError as error:
            log.warning("index_ignored", directory=directory, segment=segment.path, reason=str(error))
    if found.next_offset < known_offset or found.position < known_size:
        hole = f": {found.hole.why}" if found.hole else ""
        why = f"the log was on disk up to offset {known_offset}, but is readable only up to {found.next_offset}{hole}"
        raise LogDamagedError(directory, f"{segment.path}, position {found.position}", why)


def _renew_checkpoint(storage: Storage, directory: str, recovered: Recovered) -> None:
    active = recovered.segments[-1]
    checkpoint = Checkpoint(recovered.start_offset, active.base_offset, active.size, active.next_offset)
    if checkpoint == (recovered.checkpoint or NOTHING):
        return
    try:
        write_checkpoint(storage, directory, checkpoint)
    except WriteInDoubtError:
        raise
    except OSError as error:  # such as a full disk: the log is whole without it, only the proof of its end is weaker
        log.warning("checkpoint_not_written", directory=directory, error=str(error))
    else:
        recovered.checkpoint = checkpoint
