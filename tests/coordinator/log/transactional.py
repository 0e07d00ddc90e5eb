"""Logs with transactions, written by hand: batches and end markers in files of segments, and what a reader should find."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Literal, NamedTuple

from coordinator.filesystem.storage import Storage
from coordinator.log.segment import LOG_SUFFIX, file_name
from protocol.control_batch import TransactionEnd, encode_control_batch
from protocol.record_batch import HEADER_BYTES, Attributes, encode_batch, read_header, restamped
from tests.coordinator.log.logs import DIRECTORY, made


class Write(NamedTuple):
    """A batch of so many records of a producer in its transaction; producer -1 writes without one."""

    producer_id: int
    records: int
    size: int = 0


class End(NamedTuple):
    """Markers of these producers, in one control batch."""

    producer_ids: tuple[int, ...]
    committed: bool


Step = Write | End | Literal["roll"]


@dataclass
class Made:
    """What the log holds: a plain list of records, and which of them nobody may read."""

    values: dict[int, bytes] = field(default_factory=dict)
    aborted: set[int] = field(default_factory=set)
    open: dict[int, list[int]] = field(default_factory=dict)
    """Offsets of the records of each producer whose transaction is open."""
    markers: set[int] = field(default_factory=set)
    end_offset: int = 0
    segments: list[tuple[int, bytes]] = field(default_factory=lambda: [(0, b"")])
    """Base offset and bytes."""
    sequences: dict[int, int] = field(default_factory=dict)

    @property
    def stable(self) -> int:
        """The last stable offset."""
        return min((offsets[0] for offsets in self.open.values()), default=self.end_offset)

    def committed(self, start: int, end: int | None = None) -> dict[int, bytes]:
        """The records that a reader of committed ones finds from ``start`` on."""
        end = self.stable if end is None else end
        return {
            offset: value
            for offset, value in self.values.items()
            if start <= offset < end and offset not in self.aborted
        }

    def add(self, batch: bytes, count: int) -> None:
        base, data = self.segments[-1]
        self.segments[-1] = base, data + restamped(batch, self.end_offset, 0) + batch[HEADER_BYTES:]
        self.end_offset += count

    def write(self, step: Write) -> None:
        producer_id, count, size = step
        offsets = range(self.end_offset, self.end_offset + count)
        values = [b"%d of %d" % (offset, producer_id) + b"." * size for offset in offsets]
        self.values |= zip(offsets, values, strict=True)
        keys = [key_of(offset) for offset in offsets]
        if producer_id < 0:
            batch = encode_batch(values, keys, timestamps_ms=[*offsets])
        else:
            batch = transactional(keys, values, [*offsets], producer_id, self.sequences.get(producer_id, 0))
            self.open.setdefault(producer_id, []).extend(offsets)
            self.sequences[producer_id] = self.sequences.get(producer_id, 0) + count
        self.add(batch, count)

    def end(self, step: End) -> None:
        ended = [producer_id for producer_id in step.producer_ids if producer_id in self.open]
        if not ended:
            return
        ends = []
        for producer_id in ended:
            offsets = self.open.pop(producer_id)
            self.sequences.pop(producer_id)
            ends.append(TransactionEnd(0, producer_id, 0, step.committed, offsets[0]))
            if not step.committed:
                self.aborted |= set(offsets)
        self.markers |= set(range(self.end_offset, self.end_offset + len(ends)))
        self.add(b"".join(encode_control_batch(ends, self.end_offset).pieces()), len(ends))


def key_of(offset: int) -> bytes:
    """The key of a record, one of a few."""
    return b"k%d" % (offset * 7 % 5)


def transactional(
    keys: Sequence[bytes],
    values: Sequence[bytes],
    timestamps_ms: Sequence[int],
    producer_id: int,
    base_sequence: int,
    producer_epoch: int = 0,
) -> bytes:
    """A batch of a producer in a transaction."""
    batch = encode_batch(
        values,
        keys,
        timestamps_ms=timestamps_ms,
        producer_id=producer_id,
        producer_epoch=producer_epoch,
        base_sequence=base_sequence,
    )
    header = read_header(batch)
    return replace(header, attributes=header.attributes | Attributes.TRANSACTIONAL).pack() + batch[HEADER_BYTES:]


def follow(steps: Sequence[Step], log: Made | None = None) -> Made:
    """The log that these steps make, behind what is in ``log``."""
    log = log or Made()
    for step in steps:
        if isinstance(step, Write):
            log.write(step)
        elif isinstance(step, End):
            log.end(step)
        elif log.segments[-1][1]:
            log.segments.append((log.end_offset, b""))
    return log


def put(storage: Storage, log: Made, start: int = 0) -> None:
    """Writes the segments from ``start`` on to the directory of ``logs.opened``."""
    made(storage)
    for base, data in log.segments[start:]:
        path = f"{DIRECTORY}/{file_name(base, LOG_SUFFIX)}"
        file = storage.open(path, create=not storage.exists(path))
        file.append((data,))
        file.close()
