"""The plain list: all that was appended to a log and not taken back, and what follows from it."""

from __future__ import annotations

from bisect import bisect_right
from dataclasses import dataclass, field

from coordinator.log.producers import REMEMBERED_BATCHES
from protocol.control_batch import TransactionEnd


@dataclass(frozen=True, slots=True)
class Entry:
    """A batch of records with these ``values``, or a control batch with ``ends``."""

    offset: int
    producer_id: int = -1
    epoch: int = -1
    sequence: int = -1
    transactional: bool = False
    values: tuple[bytes, ...] = ()
    """No two records have the same. The key of each is that of ``key_of``."""
    ends: tuple[TransactionEnd, ...] = ()
    leader_epoch: int = -1
    """Of the leader that took it."""
    kept_epoch: int = -1
    """Of a producer that numbers on from transaction to transaction."""

    @property
    def next_offset(self) -> int:
        return self.offset + len(self.values) + len(self.ends)


def key_of(value: bytes) -> bytes:
    """The key of the record with this value, one of a few."""
    return b"k%d" % (int(value) * 7 % 5)


def last_of_each_key(records: dict[int, bytes]) -> dict[bytes, bytes]:
    """What a reader of these records by offset knows in the end."""
    return {key_of(value): value for _, value in sorted(records.items())}


Opened = tuple[int, int, int]
"""Producer id, epoch, first offset."""


@dataclass
class Book:
    """Entries in order, without a gap between their offsets."""

    entries: list[Entry] = field(default_factory=list)

    @property
    def end(self) -> int:
        return self.entries[-1].next_offset if self.entries else 0

    def add(self, entry: Entry) -> None:
        """What has just been appended."""
        assert entry.offset == self.end, f"{entry} follows offset {self.end}"
        self.entries.append(entry)

    def cut(self, end: int) -> None:
        """What lay at ``end`` and behind it never got into the log."""
        while self.entries and self.entries[-1].offset >= end:
            self.entries.pop()
        assert self.end == end, f"the log ends at {end}, the list at {self.end}: a batch was torn"

    def at(self, offset: int) -> Entry | None:
        """The entry that covers an offset."""
        place = bisect_right(self.entries, offset, key=lambda entry: entry.offset) - 1
        return self.entries[place] if place >= 0 and offset < self.entries[place].next_offset else None

    def open(self, below: int | None = None) -> list[Opened]:
        """What is open in the order of first offsets; with ``below`` ends at that offset and behind it do not count."""
        found: dict[int, Opened] = {}
        for entry in self.entries:
            if entry.transactional:
                found.setdefault(entry.producer_id, (entry.producer_id, entry.epoch, entry.offset))
            if below is not None and entry.offset >= below:
                continue
            for end in entry.ends:
                del found[end.producer_id]
        return sorted(found.values(), key=lambda opened: opened[2])

    def stable(self, high_watermark: int) -> int:
        """The last stable offset."""
        lowest = high_watermark
        ended = {
            (end.producer_id, end.producer_epoch)
            for entry in self.entries
            for end in entry.ends
            if entry.offset < high_watermark
        }
        for entry in self.entries:
            if entry.transactional and (entry.producer_id, entry.epoch) not in ended:
                return min(lowest, entry.offset)
        return lowest

    def fates(self, below: int | None = None) -> dict[tuple[int, int], bool]:
        """How transactions ended: whether they committed, by producer id and epoch."""
        return {
            (end.producer_id, end.producer_epoch): end.committed
            for entry in self.entries
            for end in entry.ends
            if below is None or entry.offset < below
        }

    def next_sequence(self, producer_id: int, epoch: int, kept_epoch: int = -1) -> int:
        """The sequence of the producer's next record in its epoch, or in the one that it keeps."""
        numbered_by = (producer_id, kept_epoch) if kept_epoch >= 0 else (producer_id, epoch)
        for entry in reversed(self.entries):
            if (entry.producer_id, entry.epoch if kept_epoch < 0 else entry.kept_epoch) == numbered_by:
                return entry.sequence + len(entry.values)
        return 0

    def numbered_on(self, producer_id: int) -> tuple[int, list[tuple[int, int]]]:
        """The epoch that a producer kept last; first sequence and base offset of all batches under it."""
        kept_epoch = next((each.kept_epoch for each in reversed(self.entries) if each.producer_id == producer_id), -1)
        numbers = [
            (entry.sequence, entry.offset)
            for entry in self.entries
            if (entry.producer_id, entry.kept_epoch) == (producer_id, kept_epoch)
        ]
        return kept_epoch, numbers

    def in_transaction(self, producer_id: int) -> int:
        """How many batches the open transaction of a producer has."""
        epochs = [epoch for opened, epoch, _ in self.open() if opened == producer_id]
        return sum(entry.producer_id == producer_id and entry.epoch in epochs for entry in self.entries)

    def remembered(self) -> dict[int, list[tuple[int, int]]]:
        """First sequence and base offset of the last batches of each producer with an open transaction."""
        known: dict[int, list[tuple[int, int]]] = {producer_id: [] for producer_id, _, _ in self.open()}
        epochs = {producer_id: epoch for producer_id, epoch, _ in self.open()}
        for entry in self.entries:
            if entry.producer_id in known and entry.epoch == epochs[entry.producer_id]:
                known[entry.producer_id].append((entry.sequence, entry.offset))
        return {producer_id: batches[-REMEMBERED_BATCHES:] for producer_id, batches in known.items()}

    def decided(self, start: int) -> dict[int, bytes]:
        """By offset what readers of committed records have to find from ``start`` on, when all is decided."""
        fates = self.fates()
        return {
            offset: value
            for entry in self.entries
            if not entry.transactional or fates.get((entry.producer_id, entry.epoch))
            for offset, value in enumerate(entry.values, entry.offset)
            if offset >= start
        }
