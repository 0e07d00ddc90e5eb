"""The copies of a partition on the disks of several nodes: what is new since the last look, and whether they agree.

Copies of one partition have the same batches, byte for byte. Each node compacts by itself, and writes batches anew: of logs
that may be compacted, such as those of the coordinators, records are compared, and what one copy lacks must be superseded.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import NamedTuple

from coordinator.log.partition import PartitionLog
from protocol.errors import ProtocolError
from protocol.record_batch import HEADER_BYTES, Attributes, BatchHeader, decode_columns, fingerprint, iter_batches
from tests.simulation.disk import Inode
from tests.simulation.history import History
from tests.simulation.inspection import segment_files
from tests.simulation.world import Node

Position = tuple[int, int]
"""Offset and leader epoch."""

_CONTROL = int(Attributes.CONTROL)
_LOG_APPEND_TIME = int(Attributes.LOG_APPEND_TIME)
_TRANSACTIONAL = int(Attributes.TRANSACTIONAL)


class CopiedRecord(NamedTuple):
    """A record of a copy; of a control batch all of it, without a key. ``bare`` ones may go with their transaction."""

    epoch: int
    key: bytes | None
    value: bytes | None
    content: tuple[object, ...]
    bare: bool


class CopyReader:
    """Reads what has come to files since it read them last. One that was cut or exchanged is read from its beginning."""

    def __init__(self) -> None:
        self._read: dict[Inode, tuple[int, int, Position | None]] = {}
        """Of each file: how often it had been cut, how far it was read, and the last batch."""

    def new_batches(self, node: Node, log: PartitionLog) -> Iterator[tuple[bytes, int, BatchHeader, Position | None]]:
        """Each batch with the bytes and the position where it is, and the batch before it."""
        end, last = log.written_offset, None
        for file in segment_files(node.disk, log.directory):
            cuts, position, last_there = self._read.get(file, (-1, 0, None))
            if cuts != file.cuts:
                position, last_there = 0, None
            last = last_there or last
            content = bytes(memoryview(file.live)[position:]) if position < len(file.live) else b""
            done = 0
            try:
                for at, header in iter_batches(content):
                    if header.next_offset > end:
                        break
                    yield content, at, header, last
                    last, done = (header.base_offset, header.leader_epoch), at + header.length
            except ProtocolError:
                end = -1  # the rest of a write that was cut off, which the next one overwrites
            self._read[file] = file.cuts, position + done, last


def note_new(history: History, reader: CopyReader, node: Node, log: PartitionLog, place: tuple[str, int]) -> None:
    """Compares what has come to a copy with what others have there, and the epochs of both."""
    facts, by_record, epochs = history.cluster, is_by_record(history, log), log.epochs
    for content, at, header, last in reader.new_batches(node, log):
        if not by_record:
            print_ = fingerprint(memoryview(content)[at : at + header.length])
            # The log may begin within a batch: who begins to copy it there has the rest of that batch only.
            before = None if last is None or last[0] <= log.start_offset else last
            facts.note_batch(place, log.directory, node.name, before, (header.base_offset, header.leader_epoch), print_)
            continue
        for offset, record in records_of(content, at, header, log):
            if offset >= log.start_offset:
                facts.note_record(place, log.directory, node.name, (offset, record.epoch), record.content)
    facts.note_epochs(place, log.directory, node.name, epochs.entries, log.written_offset)


def is_by_record(history: History, log: PartitionLog) -> bool:
    """Whether compaction may write the batches of a log anew."""
    topic = log.directory.rpartition("-")[0]
    return topic.startswith("__") or topic in history.records.ever_compacted


def records_of(content: bytes, at: int, header: BatchHeader, log: PartitionLog) -> Iterator[tuple[int, CopiedRecord]]:
    """The records of a batch by their offsets, each with the epoch that the log has for it."""
    if header.attributes & _CONTROL:
        body = content[at + HEADER_BYTES : at + header.length]
        yield header.base_offset, CopiedRecord(log.epochs.at(header.base_offset), None, None, (body,), bare=True)
        return
    columns, base = decode_columns(content, at, header), header.base_offset
    times = [header.max_timestamp] * columns.count
    if not header.attributes & _LOG_APPEND_TIME:
        times = columns.timestamps_ms().tolist()
    bare = bool(header.attributes & _TRANSACTIONAL)
    for delta, key, value, time_ms in zip(
        columns.offset_deltas(), columns.keys(), columns.values(), times, strict=True
    ):
        key = None if key is None else bytes(key)
        value = None if value is None else bytes(value)
        yield base + delta, CopiedRecord(log.epochs.at(base + delta), key, value, (key, value, time_ms), bare)


def differences(history: History, leader: tuple[Node, PartitionLog], other: tuple[Node, PartitionLog]) -> Iterator[str]:
    """What two copies have not in common below the high watermark of the leader, from where both begin."""
    start, end = max(leader[1].start_offset, other[1].start_offset), leader[1].high_watermark
    if not is_by_record(history, leader[1]):
        wanted, found = _batches(*leader, end), _batches(*other, end)
        begin = max([next_offset for base, next_offset, *_ in (*wanted, *found) if base <= start], default=start)
        wanted, found = ([batch for batch in copy if batch[0] >= begin] for copy in (wanted, found))
        if wanted != found:
            missing = [batch[:3] for batch in wanted if batch not in found][:3]
            yield f"has {len(found)} batches below {end}, the leader {len(wanted)}; of these it lacks {missing}"
        return
    ours, theirs = (_records(*copy, start, end) for copy in (leader, other))
    for offset in sorted({*ours, *theirs}):
        one, two = ours.get(offset), theirs.get(offset)
        if one is not None and two is not None:
            if (one.epoch, one.content) != (two.epoch, two.content):
                yield f"has {two} at {offset}, the leader {one}"
        elif one is not None and not _may_be_gone(offset, one, ours, theirs):
            yield f"lacks {one} at {offset}, which nothing supersedes"
        elif two is not None and not _may_be_gone(offset, two, theirs, ours):
            yield f"has {two} at {offset}, which the leader lacks and nothing supersedes"


def _may_be_gone(
    offset: int, record: CopiedRecord, here: Mapping[int, CopiedRecord], there: Mapping[int, CopiedRecord]
) -> bool:
    """Whether compaction may have removed a record from the other copy: a key that was deleted stays deleted."""
    if record.bare or record.key is None:
        return record.bare
    if any(at > offset and other.key == record.key for copy in (here, there) for at, other in copy.items()):
        return True
    return record.value is None and not any(other.key == record.key for other in there.values())


def _batches(node: Node, log: PartitionLog, end: int) -> list[tuple[int, int, int, bytes]]:
    return [
        (
            header.base_offset,
            header.next_offset,
            header.leader_epoch,
            fingerprint(memoryview(content)[at : at + header.length]),
        )
        for content, at, header, _ in CopyReader().new_batches(node, log)
        if header.base_offset < end
    ]


def _records(node: Node, log: PartitionLog, start: int, end: int) -> dict[int, CopiedRecord]:
    return {
        offset: record
        for content, at, header, _ in CopyReader().new_batches(node, log)
        for offset, record in records_of(content, at, header, log)
        if start <= offset < end
    }
