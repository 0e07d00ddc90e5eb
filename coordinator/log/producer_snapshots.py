"""What a partition remembers of its producers, on disk: one snapshot where the active segment begins.

Those of the segments before it stay as long as the log may be cut back to them: from the one with the high watermark on.

A snapshot holds the state at the base offset of its segment, written and synced before the segment exists. Recovery takes
the one of the active segment and lets the batches of that segment follow, which it reads anyway. When that snapshot is
missing or damaged, the state is made anew from the headers and the end markers of all segments before it; what retention or
compaction has removed meanwhile is not known then. Neither takes anything of an open transaction.
"""

from __future__ import annotations

from array import array
from bisect import bisect_right
from collections.abc import Iterable, Sequence
from typing import Final, NamedTuple

from coordinator.filesystem.storage import Storage
from coordinator.log.checkpoints import ChecksumError, decode_integers, encode_integers
from coordinator.log.errors import LogDamagedError
from coordinator.log.producers import BEFORE_RESTART, Producers, ProducerState, Snapshot, WrittenBatch
from coordinator.log.scan import Note, ends_in, walk
from coordinator.log.segment import LOG_SUFFIX, PRODUCERS_SUFFIX, Segment, base_offset_of, file_name
from coordinator.log.transactions import OpenTransaction
from coordinator.log_output import get_logger
from protocol.control_batch import TransactionEnd
from protocol.errors import ProtocolError
from protocol.record_batch import BatchHeader

log = get_logger()


class Format(NamedTuple):
    """How many numbers a snapshot has of a producer, and of each of its batches."""

    producer: int
    batch: int


WITH_KEPT_EPOCHS: Final = Format(6, 5)
WITHOUT_KEPT_EPOCHS: Final = Format(5, 5)
WITHOUT_TRANSACTIONS: Final = Format(3, 5)
_MAGICS: Final = {WITH_KEPT_EPOCHS: b"CHP4", WITHOUT_KEPT_EPOCHS: b"CHP3"}
"""Kept epochs are written where there are some: an earlier version reads all other snapshots."""
_FORMATS: Final = {
    **{magic: form for form, magic in _MAGICS.items()},
    b"CHP2": WITHOUT_TRANSACTIONS,
    b"CHP1": Format(3, 4),
}
"""The last two are from before open transactions were noted, and before ``append_time_ms`` was."""
_HEAD_BYTES: Final = 8
"""What stands before the numbers in a file."""
_NONE: Final = -1
"""The first offset of a producer without a transaction."""


def encode_snapshot(snapshot: Snapshot) -> bytes:
    """The bytes of a snapshot's file."""
    return encode_integers(_MAGICS[format_of(snapshot)], snapshot_integers(snapshot))


def format_of(snapshot: Snapshot) -> Format:
    """In which format ``snapshot_integers`` gives it."""
    some = any(state.kept_epoch >= 0 for _, state in snapshot)
    return WITH_KEPT_EPOCHS if some else WITHOUT_KEPT_EPOCHS


def snapshot_integers(snapshot: Snapshot) -> list[int]:
    """For each producer its id, its epoch, how many batches, first offset and start of its open transaction (-1 without
    one), its kept epoch (-1 without one) if any of them has one, and the five numbers of each batch.

    In the order of their last batches, as a scan of the log finds them. In memory one may stand elsewhere whose last append
    was refused and taken back, or one that keeps its epoch: where its last end marker is.
    """
    numbers: list[int] = []
    with_kept_epochs = format_of(snapshot) is WITH_KEPT_EPOCHS
    for producer_id, state in sorted(snapshot, key=lambda entry: entry[1].batches[-1].base_offset):
        transaction = state.transaction
        opened = (_NONE, _NONE) if transaction is None else (transaction.first_offset, transaction.started_ms)
        numbers += (producer_id, state.epoch, len(state.batches), *opened)
        if with_kept_epochs:
            numbers.append(state.kept_epoch)
        for batch in state.batches:
            numbers += batch
    return numbers


def encode_first(states: Iterable[tuple[int, ProducerState]], max_bytes: int) -> bytes:
    """As ``encode_snapshot``, of as many producers as fit in ``max_bytes``, from the first on."""
    room = (max_bytes - _HEAD_BYTES) // 8
    fit: list[tuple[int, ProducerState]] = []
    form = WITHOUT_KEPT_EPOCHS
    for producer_id, state in states:
        if state.kept_epoch >= 0 and form is WITHOUT_KEPT_EPOCHS:
            form = WITH_KEPT_EPOCHS
            room -= len(fit)
        room -= form.producer + form.batch * len(state.batches)
        if room < 0:
            break
        fit.append((producer_id, state))
    return encode_snapshot(fit)


def decode_snapshot(data: bytes) -> list[tuple[int, ProducerState]]:
    """The snapshot in ``data``. Raises ``ChecksumError`` when it is another file, cut off or damaged."""
    magic = data[:4]
    form = _FORMATS.get(magic, WITHOUT_KEPT_EPOCHS)
    return snapshot_from(decode_integers(magic if magic in _FORMATS else _MAGICS[form], data), form)


def snapshot_from(numbers: array[int], form: Format = WITHOUT_KEPT_EPOCHS) -> list[tuple[int, ProducerState]]:
    """What ``snapshot_integers`` gave. Raises ``ChecksumError`` when it ends early."""
    snapshot: list[tuple[int, ProducerState]] = []
    position, width = 0, form.batch
    try:
        while position < len(numbers):
            producer_id, epoch, count, *opened = numbers[position : position + form.producer]
            position += form.producer
            end = position + width * count
            batches = tuple(WrittenBatch(*numbers[at : at + width]) for at in range(position, end, width))
            if end > len(numbers):
                raise ValueError(f"{count} batches do not fit in")
            position = end
            transaction = None
            if opened and opened[0] != _NONE:
                transaction = OpenTransaction(producer_id, epoch, *opened[:2])
            kept_epoch = opened[2] if len(opened) > 2 else -1
            snapshot.append((producer_id, ProducerState(epoch, batches, BEFORE_RESTART, transaction, kept_epoch)))
    except (TypeError, ValueError) as error:
        raise ChecksumError(f"it ends within a producer: {error}") from error
    return snapshot


def write_snapshot(storage: Storage, directory: str, offset: int, snapshot: Snapshot) -> None:
    """Puts down what is remembered at ``offset``, where a segment is about to begin."""
    storage.write_file(f"{directory}/{file_name(offset, PRODUCERS_SUFFIX)}", encode_snapshot(snapshot))


def remove_snapshots(storage: Storage, directory: str, names: Iterable[str], offset: int) -> None:
    """Removes the snapshots that no truncation to ``offset`` or above can need, of all that are among the ``names``.

    Those are the ones before the segment that holds ``offset``, and those without a segment.
    """
    names = list(names)
    bases = sorted(base for name in names if (base := base_offset_of(name, LOG_SUFFIX)) is not None)
    kept = frozenset(bases[max(bisect_right(bases, offset) - 1, 0) :])
    for name in names:
        base = base_offset_of(name, PRODUCERS_SUFFIX)
        if base is not None and base not in kept and storage.exists(f"{directory}/{name}"):
            storage.remove(f"{directory}/{name}")


def recover_producers(storage: Storage, directory: str, segments: Sequence[Segment]) -> Producers:
    """What was remembered where the last of ``segments`` begins.

    Raises ``LogDamagedError`` when it has to be made anew from a segment that is damaged, ``OSError``.
    """
    active = segments[-1].base_offset
    if len(segments) == 1 and active == 0:
        return Producers()
    path = f"{directory}/{file_name(active, PRODUCERS_SUFFIX)}"
    try:
        return Producers(decode_snapshot(storage.read_file(path)))
    except FileNotFoundError:
        why = "it is missing"
    except ChecksumError as error:
        why = str(error)
    log.warning("producer_snapshot_rebuilt", directory=directory, snapshot=path, reason=why)
    producers = Producers()
    for segment in segments[:-1]:
        _replay(storage, directory, segment, noting(producers))
    try:
        write_snapshot(storage, directory, active, list(producers))
    except OSError as error:  # it will be made anew once more
        log.warning("producer_snapshot_not_written", directory=directory, error=str(error))
    return producers


def noting(producers: Producers) -> Note:
    """What notes a batch that recovery found in the log."""

    def note(header: BatchHeader, ends: Sequence[TransactionEnd]) -> None:
        if header.producer_id >= 0 and header.base_sequence >= 0:
            producers.note(header, header.base_offset)
        for end in ends:  # of others nothing is left in the log but the marker
            producers.end(end.producer_id, end.producer_epoch, header.base_offset)
        if producers.unsettled:
            producers.settle(header.next_offset)
            producers.transactions.acknowledge(header.next_offset)

    return note


def _replay(storage: Storage, directory: str, segment: Segment, note: Note) -> None:
    file, offset = storage.open(segment.path), segment.base_offset
    try:
        for position, header, batch in walk(file, 0, file.size()):
            if header.base_offset != offset:  # what is noted of batches relies on their order
                why = f"a batch of offset {header.base_offset} is where {offset} belongs"
                raise LogDamagedError(directory, f"{segment.path}, position {position}", why)
            note(header, ends_in(batch, header))
            offset = header.next_offset
    except ProtocolError as error:
        raise LogDamagedError(directory, segment.path, str(error)) from error
    finally:
        file.close()
