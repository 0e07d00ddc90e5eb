"""A partition's log in memory, with the operations that the real one has for replication, and a disk that loses tails."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import NamedTuple

from coordinator.log.leader_epochs import LeaderEpochs, check_continues

NO_HORIZON = -1


class Record(NamedTuple):
    """``value`` is None for a tombstone."""

    offset: int
    key: int
    value: int | None


class Batch(NamedTuple):
    """Records of one leader, and the offsets that they cover: after a compaction more than there are records."""

    base_offset: int
    next_offset: int
    leader_epoch: int
    records: tuple[Record, ...]
    horizon_ms: int = NO_HORIZON
    """Tombstones that were compacted once go when this has come."""


def tail_of(batch: Batch, offset: int) -> Batch:
    """What a batch has from ``offset`` on."""
    records = tuple(record for record in batch.records if record.offset >= offset)
    return batch._replace(base_offset=offset, records=records)


class SimLog:
    """See the module text. ``records`` has what is in the log by offset: leader epoch, key, value."""

    tail_of = staticmethod(tail_of)
    """How a batch that compaction joined is cut for a follower that ends within it."""

    def __init__(self) -> None:
        self.start_offset = 0
        self.end_offset = 0
        self.written_offset = 0
        self.flushed_offset = 0
        self.clean_until = 0
        self.epochs = LeaderEpochs()
        self.batches: list[Batch] = []
        self.records: dict[int, tuple[int, int, int | None]] = {}

    # The leader's

    def begin_epoch(self, leader_epoch: int) -> None:
        """Syncs what is written; the epoch is on disk before its first record."""
        self.write()
        self.flush()
        self.epochs.begin(leader_epoch, self.end_offset)

    def append(self, records: Iterable[tuple[int, int | None]]) -> int:
        """Queues one batch of keys and values in the epoch that was begun last; returns its base offset."""
        base = self.end_offset
        batch = tuple(Record(offset, *record) for offset, record in enumerate(records, base))
        self._add(Batch(base, base + len(batch), self.epochs.latest, batch))
        return base

    def write(self) -> None:
        """What is queued is in the file now."""
        self.written_offset = self.end_offset

    def refuse_write(self) -> None:
        """The disk takes nothing: what is queued gives its offsets back. The epoch that was begun stays."""
        self._take_back(self.written_offset)

    def flush(self) -> None:
        """What is written is on disk now."""
        self.flushed_offset = self.written_offset

    def read(self, offset: int, end: int, most: int) -> tuple[Batch, ...]:
        """Batches from ``offset`` on, the first one cut to begin there."""
        found = [batch for batch in self.batches if offset < batch.next_offset <= end][:most]
        if found and found[0].base_offset < offset:
            found[0] = self.tail_of(found[0], offset)
        return tuple(found)

    def delete_before(self, offset: int) -> None:
        """The log begins at ``offset``, durably."""
        if offset <= self.start_offset:
            return
        assert offset <= self.flushed_offset, f"the log is on disk up to {self.flushed_offset}, not {offset}"
        for gone in [one for one in self.records if one < offset]:
            del self.records[gone]
        self.batches = [batch for batch in self.batches if batch.next_offset > offset]
        if self.batches and self.batches[0].base_offset < offset:
            self.batches[0] = tail_of(self.batches[0], offset)
        self.start_offset = offset
        self.epochs.raise_start(offset)

    # The follower's

    def append_as_follower(self, batches: Sequence[Batch], epochs: Sequence[tuple[int, int]]) -> None:
        """Appends a leader's batches as they are. They are written, and not yet on disk."""
        check_continues(batches, epochs, self.end_offset, self.epochs.at(self.end_offset - 1))
        for epoch, start in epochs:
            self.epochs.begin(epoch, start)
        for batch in batches:
            self._add(batch)
        self.write()

    def truncate_to(self, offset: int) -> None:
        """Gives up everything from ``offset`` on, durably."""
        assert self.start_offset <= offset <= self.end_offset
        self._cut(offset)
        self.written_offset = self.flushed_offset = offset

    def reset_to(self, offset: int) -> None:
        """An empty log that begins at ``offset``."""
        self.batches.clear()
        self.records.clear()
        self.epochs = LeaderEpochs()
        self.start_offset = self.end_offset = self.written_offset = self.flushed_offset = offset
        self.clean_until = offset

    # The disk's

    def lose(self, end: int) -> None:
        """A power cut leaves what lies below ``end``, and the daemon that starts then opens a log that ends there."""
        if end < self.start_offset:
            self.reset_to(self.start_offset)
        else:
            self._cut(end)
            self.written_offset = self.flushed_offset = self.end_offset

    # Compaction

    def compact(self, below: int, now_ms: int, retention_ms: int, joins: bool) -> None:
        """Keeps the last record of each key below ``below``; ``joins`` makes one batch of neighbours of an epoch.

        As in the daemon a pass without a batch that was not compacted yet removes nothing.
        """
        dirty = any(self.clean_until < batch.next_offset <= below for batch in self.batches)
        last = {
            record.key: record.offset for batch in self.batches for record in batch.records if record.offset < below
        }
        made: list[Batch] = []
        covered = self.start_offset
        for batch in self.batches:
            if batch.next_offset > below:
                made.append(batch)
                continue
            expired = dirty and 0 <= batch.horizon_ms <= now_ms
            kept = tuple(
                record
                for record in batch.records
                if last[record.key] == record.offset and not (record.value is None and expired)
            )
            for record in batch.records:
                if record not in kept:
                    del self.records[record.offset]
            covered = batch.next_offset
            previous = made[-1] if made else None
            if not kept and previous is not None:
                made[-1] = previous._replace(next_offset=covered)
                continue
            tombstones = any(record.value is None for record in kept)
            horizon = (
                (batch.horizon_ms if batch.horizon_ms >= 0 else now_ms + retention_ms) if tombstones else NO_HORIZON
            )
            cleaned = batch._replace(records=kept, horizon_ms=horizon)
            alike = previous is not None and (previous.leader_epoch, previous.horizon_ms) == (
                batch.leader_epoch,
                horizon,
            )
            if joins and alike and previous is not None:
                made[-1] = previous._replace(next_offset=covered, records=previous.records + kept)
            else:
                made.append(cleaned)
        self.batches = made
        self.clean_until = max(self.clean_until, covered)

    def _add(self, batch: Batch) -> None:
        self.batches.append(batch)
        for offset, key, value in batch.records:
            self.records[offset] = (batch.leader_epoch, key, value)
        self.end_offset = batch.next_offset

    def _cut(self, offset: int) -> None:
        self._take_back(offset)
        self.epochs.cut(self.end_offset)

    def _take_back(self, offset: int) -> None:
        while self.batches and self.batches[-1].next_offset > offset:
            batch = self.batches.pop()
            assert batch.base_offset >= offset, f"offset {offset} lies within {batch}"
            for record in batch.records:
                del self.records[record.offset]
        self.end_offset = max(offset, self.start_offset)
        self.written_offset = min(self.written_offset, self.end_offset)
        self.flushed_offset = min(self.flushed_offset, self.end_offset)
        self.clean_until = min(self.clean_until, self.end_offset)
