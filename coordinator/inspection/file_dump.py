"""``cohort log dump`` of one file: which kind it is, and what it says."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, Final

from coordinator.filesystem.files import ReadOnlyStorage
from coordinator.inspection.coordinator_records import Contents, contents_of
from coordinator.inspection.node_files import DAMAGED, ForeignContentError, node_file_shown_by
from coordinator.inspection.output import Output, counted, plain, time_text
from coordinator.inspection.segment_dump import SegmentDump, Wanted
from coordinator.log.checkpoints import (
    CHECKPOINT,
    CLEANER_POINT,
    LEADER_EPOCHS,
    ChecksumError,
    decode_checkpoint,
    decode_cleaner_point,
    decode_leader_epochs,
)
from coordinator.log.clean_end import CLEAN_END, decode_clean_end
from coordinator.log.index import SegmentEnd, SparseIndex, decode_index
from coordinator.log.producer_snapshots import decode_snapshot
from coordinator.log.producers import ProducerState
from coordinator.log.segment import (
    CLEANED_SUFFIX,
    INDEX_SUFFIX,
    LOG_SUFFIX,
    PRODUCERS_SUFFIX,
    SWAP_SUFFIX,
    base_offset_of,
    swap_range_of,
)
from coordinator.logs.topic_ids import SUFFIX as TOPIC_ID_SUFFIX
from protocol.record_batch import MAGIC

MAX_BYTES: Final = 512 * 1024 * 1024
"""A file that is read as a whole may be as large; Cohort writes none that is nearly so."""
_ANY_INTERVAL: Final = 1
_SEGMENTS: Final = (LOG_SUFFIX, SWAP_SUFFIX, CLEANED_SUFFIX)

Show = Callable[[Output, bytes, Wanted], None]


class UnknownFileError(Exception):
    """It is no file of a data directory; the text says what it looks like."""


def dump_file(
    storage: ReadOnlyStorage, directory: str, name: str, output: Output, wanted: Wanted, contents: Contents | None
) -> bool:
    """Prints what a file below the storage's root says; returns False when something in it is damaged.

    ``contents`` says what a segment's records are, None to go by its directory's name. Raises ``UnknownFileError`` and
    ``OSError``.
    """
    path = f"{directory}/{name}" if directory else name
    file = storage.open(path)
    try:
        head = file.read(0, 4)
        if name.endswith(TOPIC_ID_SUFFIX):
            topic_id = name.removesuffix(TOPIC_ID_SUFFIX)
            output.tell("topic_id", f"{directory} is a log of the topic with the id {topic_id}", {"topic_id": topic_id})
            return True
        show = _shown_by(name, head)
        if name.endswith(_SEGMENTS) or (show is None and head == MAGIC):
            return SegmentDump(output, wanted, contents or contents_of(directory)).run(file, path, _base(name))
        if show is None:
            raise UnknownFileError(_what_it_is(path, head))
        if file.size() > MAX_BYTES:
            raise UnknownFileError(f"{path} has {file.size():,} bytes: no such file of Cohort is as large")
        data = file.read(0, file.size())
    finally:
        file.close()
    try:
        show(output, data, wanted)
    except ForeignContentError:
        begins = f"begins with {head!r}, as no such file of Cohort does"
        raise UnknownFileError(f"{path} {begins}: it is of another program") from None
    except ChecksumError as error:
        output.tell("damage", f"{path} is damaged: {error}", {"file": path, "why": str(error)})
        return False
    except DAMAGED as error:  # which names the file
        output.tell("damage", f"{path}: {error}", {"file": path, "why": str(error)})
        return False
    return True


def _base(name: str) -> int | None:
    covered = swap_range_of(name)
    if covered is not None:
        return covered[0]
    base = base_offset_of(name, LOG_SUFFIX)
    return base_offset_of(name, CLEANED_SUFFIX) if base is None else base


def _shown_by(name: str, head: bytes) -> Show | None:
    if name in _BY_NAME:
        return _BY_NAME[name]
    of_node = node_file_shown_by(name)
    if of_node is not None:
        return lambda output, data, wanted: of_node(output, data)
    for suffix, show in _BY_SUFFIX:
        if name.endswith(suffix):
            return show
    return _BY_MAGIC.get(head[:3])


def _what_it_is(path: str, head: bytes) -> str:
    begins = f"begins with {head!r}" if head else "is empty"
    return (
        f"{path} {begins}, and neither that nor its name is of a file of a data directory: give a segment (.log), "
        "an index (.index), a snapshot of producers (.producers), checkpoint, leader-epochs, cleaner-point or clean-end of "
        "a partition's log; or metadata.json, metadata.changes, node.json, inventory or high-watermarks"
    )


def _index(output: Output, data: bytes, wanted: Wanted) -> None:
    _tell_index(output, *decode_index(data, _ANY_INTERVAL), wanted)


def _tell_index(output: Output, end: SegmentEnd, index: SparseIndex, wanted: Wanted) -> None:
    text = (
        f"index of the segment of offsets {end.base_offset} to {end.next_offset - 1}, {end.end_position:,} bytes; its "
        f"latest record is of {time_text(end.max_timestamp)}, its last append was at {time_text(end.last_ms)}; "
        f"{counted(len(index), 'entry', 'entries')}, {counted(len(index.aborted), 'aborted transaction')}"
    )
    output.tell("index", text, {**plain(end), "entries": len(index), "aborted": len(index.aborted)})
    for offset, position, earlier in index.entries():
        if wanted.first <= offset < wanted.until:
            text = f"  offset {offset} begins at position {position}; records before it are of {time_text(earlier)} or older"
            fields = {"offset": offset, "position": position, "max_timestamp_before_ms": earlier}
            output.tell("entry", text, fields)
    for aborted in index.aborted:
        if aborted.first_offset < wanted.until and aborted.end_offset >= wanted.first:
            text = (
                f"  the transaction of producer {aborted.producer_id} from offset {aborted.first_offset} on was aborted by "
                f"the end marker at offset {aborted.end_offset}"
            )
            output.tell("aborted", text, aborted._asdict())


def _producers(output: Output, data: bytes, wanted: Wanted) -> None:
    _tell_producers(output, decode_snapshot(data))


def _tell_producers(output: Output, snapshot: Iterable[tuple[int, ProducerState]]) -> None:
    known = list(snapshot)
    output.tell("producers", f"{counted(len(known), 'producer')} remembered", {"producers": len(known)})
    for producer_id, state in known:
        last = state.batches[-1] if state.batches else None
        sequence = "" if last is None else f", last sequence {last.last_sequence} at offset {last.next_offset - 1}"
        text = f"  producer {producer_id}, epoch {state.epoch}, {counted(len(state.batches), 'batch', 'batches')}{sequence}"
        if state.transaction is not None:
            text += (
                f"; its transaction from offset {state.transaction.first_offset} on is open since "
                f"{time_text(state.transaction.started_ms)}"
            )
        fields: dict[str, Any] = {"producer_id": producer_id, "epoch": state.epoch, "batches": state.batches}
        output.tell("producer", text, {**fields, "transaction": plain(state.transaction)})


def _checkpoint(output: Output, data: bytes, wanted: Wanted) -> None:
    point = decode_checkpoint(data)
    text = (
        f"checkpoint: the log began at offset {point.start_offset} and was on disk up to offset {point.end_offset}, which "
        f"is {point.active_size:,} bytes of the segment that begins at offset {point.active_base_offset}; it may have "
        "grown since"
    )
    output.tell("checkpoint", text, plain(point))


def _leader_epochs(output: Output, data: bytes, wanted: Wanted) -> None:
    epochs = decode_leader_epochs(data)
    output.tell("leader_epochs", f"{counted(len(epochs), 'leader epoch')}", {"epochs": len(epochs)})
    for epoch, first in epochs:
        output.tell("leader_epoch", f"  epoch {epoch} from offset {first} on", {"epoch": epoch, "first_offset": first})


def _cleaner_point(output: Output, data: bytes, wanted: Wanted) -> None:
    offset = decode_cleaner_point(data)
    output.tell("cleaner_point", f"the log is compacted below offset {offset}", {"clean_until": offset})


def _clean_end(output: Output, data: bytes, wanted: Wanted) -> None:
    clean = decode_clean_end(data, _ANY_INTERVAL)
    output.tell("clean_end", "the log was closed cleanly, with this segment as its last", plain(clean.segment))
    _tell_index(output, clean.segment, clean.index, wanted)
    _tell_producers(output, clean.producers)


_BY_NAME: Final[dict[str, Show]] = {
    CHECKPOINT: _checkpoint,
    LEADER_EPOCHS: _leader_epochs,
    CLEANER_POINT: _cleaner_point,
    CLEAN_END: _clean_end,
}
_BY_SUFFIX: Final = ((INDEX_SUFFIX, _index), (PRODUCERS_SUFFIX, _producers))
_BY_MAGIC: Final[dict[bytes, Show]] = {
    b"CHX": _index,
    b"CHP": _producers,
    b"CHK": _checkpoint,
    b"CHE": _leader_epochs,
    b"CHC": _cleaner_point,
    b"CHN": _clean_end,
}
