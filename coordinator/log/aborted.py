"""The aborted transactions whose end markers lie in one segment, so that reads can leave out their records.

Three integers each: the producer id, the offset of the transaction's first record in this partition, and the offset of its
marker. The records of an aborted transaction are those of batches of its producer with ``first <= base offset < marker``.
Its beginning may lie in an earlier segment than its marker, so a read also asks the segments behind the one it reads.
``lowest_first`` says at once that there is nothing to ask: as long as nothing is aborted no entry is looked at.

Entries are kept in the order of their markers, and for each ``_BLOCK`` of them the lowest first offset: a look-up bisects to
the first marker behind its range and passes over whole blocks that begin behind it.
"""

from __future__ import annotations

import struct
from array import array
from bisect import bisect_right
from collections.abc import Iterable, Iterator
from typing import Final, NamedTuple

from protocol.control_batch import TransactionEnd
from protocol.record_batch import Attributes, empty_batch

NONE_ABORTED: Final = 2**63 - 1
"""The lowest first offset where nothing is aborted: behind every offset."""
_BLOCK: Final = 256
_MAX_SPAN: Final = 2**31
_PLACE: Final = struct.Struct("<8xI4xqiH2xq")
"""Of a batch's header: length, base offset, leader epoch, attributes, producer id."""
_CONTROL: Final = int(Attributes.CONTROL)
_TRANSACTIONAL: Final = int(Attributes.TRANSACTIONAL)


class AbortedTransaction(NamedTuple):
    """One entry: the batches of ``producer_id`` from ``first_offset`` up to the marker at ``end_offset`` are aborted."""

    producer_id: int
    first_offset: int
    end_offset: int


class AbortedTransactions:
    """The entries of one segment. They are noted in the order of their markers."""

    __slots__ = ("_blocks", "_ends", "_firsts", "_producer_ids", "lowest_first")

    def __init__(self) -> None:
        self._producer_ids = array("q")
        self._firsts = array("q")
        self._ends = array("q")
        self._blocks = array("q")
        """The lowest first offset of each block of entries."""
        self.lowest_first = NONE_ABORTED

    def __len__(self) -> int:
        return len(self._ends)

    def __iter__(self) -> Iterator[AbortedTransaction]:
        return map(AbortedTransaction, self._producer_ids, self._firsts, self._ends)

    @property
    def size(self) -> int:
        """Bytes of memory that the entries take."""
        return 24 * len(self._ends)

    def note(self, producer_id: int, first_offset: int, end_offset: int) -> None:
        """Adds a transaction that the marker at ``end_offset`` has aborted; no later one may have been noted."""
        if len(self._ends) % _BLOCK == 0:
            self._blocks.append(first_offset)
        elif first_offset < self._blocks[-1]:
            self._blocks[-1] = first_offset
        self._producer_ids.append(producer_id)
        self._firsts.append(first_offset)
        self._ends.append(end_offset)
        self.lowest_first = min(self.lowest_first, first_offset)

    def note_ends(self, base_offset: int, ends: Iterable[TransactionEnd]) -> None:
        """Notes what the control batch at ``base_offset`` has aborted."""
        for offset, end in enumerate(ends, base_offset):
            if not end.committed:
                self.note(end.producer_id, end.first_offset, offset)

    def overlapping(self, start_offset: int, end_offset: int) -> list[AbortedTransaction]:
        """The transactions that may have records in ``[start_offset, end_offset)``."""
        if self.lowest_first >= end_offset:
            return []
        found = []
        entry, count = bisect_right(self._ends, start_offset), len(self._ends)
        while entry < count:
            following = min(entry - entry % _BLOCK + _BLOCK, count)
            if self._blocks[entry // _BLOCK] < end_offset:
                for at in range(entry, following):
                    if self._firsts[at] < end_offset:
                        found.append(AbortedTransaction(self._producer_ids[at], self._firsts[at], self._ends[at]))
            entry = following
        return found

    def integers(self) -> array[int]:
        """The entries for a file, for ``aborted_from``."""
        return self._producer_ids + self._firsts + self._ends


def aborted_from(values: array[int]) -> AbortedTransactions:
    """What ``AbortedTransactions.integers`` gave: three integers for each entry."""
    count = len(values) // 3
    aborted = AbortedTransactions()
    aborted._producer_ids = values[:count]
    aborted._firsts = values[count : 2 * count]
    aborted._ends = values[2 * count :]
    firsts = aborted._firsts
    aborted._blocks = array("q", (min(firsts[at : at + _BLOCK]) for at in range(0, count, _BLOCK)))
    aborted.lowest_first = min(aborted._blocks, default=NONE_ABORTED)
    return aborted


def merged(segments: Iterable[AbortedTransactions], start_offset: int, end_offset: int) -> AbortedTransactions:
    """All entries of ``segments``, which come in the order of the log, that may have records in a range of offsets."""
    found = AbortedTransactions()
    for aborted in segments:
        for entry in aborted.overlapping(start_offset, end_offset):
            found.note(*entry)
    return found


class AbortedBatches:
    """Which batches of a range of offsets belong to aborted transactions."""

    __slots__ = ("_ranges",)

    def __init__(self, segments: Iterable[AbortedTransactions], start_offset: int, end_offset: int) -> None:
        """``segments`` are all that may have the markers; other threads may note later ones meanwhile."""
        ranges: dict[int, list[tuple[int, int]]] = {}
        for aborted in segments:
            for producer_id, first_offset, marker_offset in aborted.overlapping(start_offset, end_offset):
                ranges.setdefault(producer_id, []).append((first_offset, marker_offset))
        # A producer id has one transaction after the other, so those of one never overlap.
        self._ranges = {producer_id: sorted(found) for producer_id, found in ranges.items()}

    def __bool__(self) -> bool:
        return bool(self._ranges)

    def has(self, attributes: int, producer_id: int, base_offset: int) -> bool:
        """Whether the batch whose header says this is aborted."""
        if not attributes & _TRANSACTIONAL or producer_id not in self._ranges:
            return False
        ranges = self._ranges[producer_id]
        place = bisect_right(ranges, (base_offset, NONE_ABORTED)) - 1
        return place >= 0 and base_offset < ranges[place][1]

    def without(self, batches: bytes | memoryview, next_offset: int) -> tuple[bytes, int | None]:
        """The whole ``batches``, which end at ``next_offset``, with an empty batch in the place of neighbouring aborted
        ones and markers, which tell a reader nothing either. Their headers must have been checked.

        An empty batch has the leader epoch of the last one in whose place it stands: a reader that has passed it asks on
        with that epoch (KIP-320), and with an earlier one would be told that the log was truncated. Returned beside it is
        that epoch when nothing else is left, else None.
        """
        pieces: list[bytes | memoryview] = []
        view, position, kept, gap, gap_epoch, left = memoryview(batches), 0, 0, -1, -1, False
        while position < len(batches):
            length, base_offset, epoch, attributes, producer_id = _PLACE.unpack_from(batches, position)
            if attributes & _CONTROL or self.has(attributes, producer_id, base_offset):
                if gap < 0:
                    pieces.append(view[kept:position])
                    gap = base_offset
                gap_epoch = epoch
            else:
                left = True
                if gap >= 0:
                    pieces += nothing_in(gap, base_offset, gap_epoch)
                    gap, kept = -1, position
            position += length
        if gap >= 0:
            pieces += nothing_in(gap, next_offset, gap_epoch)
        elif not pieces:
            return bytes(batches), None
        else:
            pieces.append(view[kept:])
        return b"".join(pieces), None if left else gap_epoch


NOTHING_ABORTED: Final = AbortedBatches((), 0, 0)


def nothing_in(base_offset: int, next_offset: int, leader_epoch: int) -> Iterator[bytes]:
    """The pieces of an empty batch that covers these offsets; of several, where they are too many for one."""
    while base_offset < next_offset:
        header, body = empty_batch(base_offset, min(next_offset - base_offset, _MAX_SPAN) - 1, leader_epoch)
        yield header.pack()
        yield body
        base_offset = header.next_offset
