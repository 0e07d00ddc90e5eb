"""The log of the simulated shell: what is on disk, what is only written, and what compaction leaves."""

from __future__ import annotations

from typing import Final, NamedTuple

from coordinator.groups.records import (
    CoordinatorRecord,
    GenerationRecord,
    GenerationTombstone,
    GroupMetadataTombstone,
    OffsetCommitRecord,
    OffsetCommitTombstone,
    PendingOffsetsRecord,
    PendingOffsetsTombstone,
)
from tests.simulation.core.ledger import Ledger

TOMBSTONES: Final = (OffsetCommitTombstone, GroupMetadataTombstone, GenerationTombstone, PendingOffsetsTombstone)


class Written(NamedTuple):
    """A record of the log, and what the observer knows of it: the group's book, who wrote it in which generation, and how
    many were written before it."""

    record: CoordinatorRecord
    ledger: Ledger
    member_id: str
    generation: int
    serial: int


class Journal:
    """Records in order; ``flushed`` of them are on disk, and of the others as many as a crash leaves."""

    def __init__(self) -> None:
        self.entries: list[Written] = []
        self.flushed = 0
        self.written = 0
        self._ends: list[int] = []
        self._compacted = 0

    @property
    def at_rest(self) -> bool:
        """Whether everything is on disk."""
        return not self._ends

    def add(self, record: CoordinatorRecord, ledger: Ledger, member_id: str, generation: int) -> None:
        """Writes one record."""
        self.entries.append(Written(record, ledger, member_id, generation, self.written))
        self.written += 1

    def decided(self) -> None:
        """A decision is complete: its records survive together or not at all."""
        self._ends.append(len(self.entries))

    def flush(self) -> None:
        """Everything is on disk."""
        self.flushed = len(self.entries)
        self._ends.clear()

    def crash(self, draw: float) -> None:
        """What was flushed stays, and perhaps more: whole decisions."""
        ends = [self.flushed, *self._ends]
        del self.entries[ends[int(draw * len(ends))] :]
        self._ends.clear()
        self.compact()

    def compact(self) -> None:
        """Keeps the latest record of each key, and tombstones until they have been seen by a compaction before."""
        latest: dict[object, Written] = {}
        for position, entry in enumerate(self.entries):
            key = _key(entry.record)
            latest.pop(key, None)  # the latest record keeps its place behind the others
            if position >= self._compacted or not isinstance(entry.record, TOMBSTONES):
                latest[key] = entry
        self.entries = list(latest.values())
        self._compacted = self.flushed = len(self.entries)


def _key(record: CoordinatorRecord) -> object:
    if isinstance(record, OffsetCommitRecord | OffsetCommitTombstone):
        return record.group_id, record.topic, record.partition
    if isinstance(record, PendingOffsetsRecord | PendingOffsetsTombstone):
        return record.group_id, record.producer_id
    return isinstance(record, GenerationRecord | GenerationTombstone), record.group_id
