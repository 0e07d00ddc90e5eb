"""The sparse index of one segment: from offsets and timestamps to positions in the file.

One entry for about every ``index_interval_bytes`` of log, each three integers: the base offset of a batch, its position,
and the largest timestamp of all batches *before* it in the segment. All three rise, so both look-ups are a bisection, and
one file serves as offset index and as time index. The start of the segment is an entry that is never written down.

The aborted transactions whose markers lie in the segment (``aborted``) are part of it, in memory and in the file.
"""

from __future__ import annotations

from array import array
from bisect import bisect_left, bisect_right
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

from coordinator.log.aborted import AbortedTransactions, aborted_from
from coordinator.log.checkpoints import ChecksumError, decode_integers, encode_integers

MAGIC: Final = b"CHX3"
OLDER_MAGIC: Final = b"CHX2"
"""As it was before aborted transactions were noted."""
OLDEST_MAGIC: Final = b"CHX1"
"""As it was before ``last_ms`` was noted."""
NO_TIMESTAMP: Final = -1
"""The largest timestamp of a segment without records; a time that is not known."""
_FIELDS: Final = 6


@dataclass(frozen=True, slots=True)
class SegmentEnd:
    """What the index file of a closed segment says about it."""

    base_offset: int
    next_offset: int
    end_position: int
    max_timestamp: int
    last_ms: int
    """Latest wall time of an append to it, or ``NO_TIMESTAMP``."""

    @property
    def place(self) -> tuple[int, int, int]:
        """Base offset, size and next offset: where the log ends with this segment."""
        return self.base_offset, self.end_position, self.next_offset


class SparseIndex:
    """The entries of one segment. ``interval_bytes`` is the least distance of two entries in the file."""

    __slots__ = ("_interval_bytes", "_offsets", "_positions", "_timestamps", "aborted", "max_timestamp")

    def __init__(self, interval_bytes: int) -> None:
        self._interval_bytes = interval_bytes
        self._offsets = array("q")
        self._positions = array("q")
        self._timestamps = array("q")
        self.max_timestamp = NO_TIMESTAMP
        self.aborted = AbortedTransactions()
        """Those whose markers lie in the segment."""

    def __len__(self) -> int:
        return len(self._offsets)

    def add(self, base_offset: int, position: int, max_timestamp: int) -> None:
        """Notes the next batch of the segment, in order; an entry is kept only if the last one is far enough behind."""
        if position - self.last_position >= self._interval_bytes:
            self.add_entry(base_offset, position, self.max_timestamp)
        self.max_timestamp = max(self.max_timestamp, max_timestamp)

    def add_entry(self, base_offset: int, position: int, earlier_max_timestamp: int) -> None:
        """Adds an entry as it stands: the append path decides by itself which batches get one."""
        self._offsets.append(base_offset)
        self._positions.append(position)
        self._timestamps.append(earlier_max_timestamp)

    def entries(self) -> Iterator[tuple[int, int, int]]:
        """Of each entry the base offset of a batch, its position, and the largest timestamp of all batches before it."""
        return zip(self._offsets, self._positions, self._timestamps, strict=True)

    @property
    def size(self) -> int:
        """Bytes of memory that the entries take."""
        return 24 * len(self._offsets) + self.aborted.size

    @property
    def last_position(self) -> int:
        """The position of the last entry, 0 without one."""
        return self._positions[-1] if self._positions else 0

    def position_for_offset(self, offset: int) -> int:
        """Where to start looking for the batch that covers ``offset``: at or before it, the start of a batch."""
        entry = bisect_right(self._offsets, offset)
        return self._positions[entry - 1] if entry else 0

    def position_behind(self, offset: int, end_position: int) -> int:
        """A position at or behind the start of the batch of ``offset``, as near as the entries tell, or ``end_position``."""
        entry = bisect_left(self._offsets, offset)
        return self._positions[entry] if entry < len(self._offsets) else end_position

    def position_for_timestamp(self, timestamp_ms: int) -> int:
        """Where to start looking for the first record at or after ``timestamp_ms``: no earlier batch has one."""
        entry = bisect_left(self._timestamps, timestamp_ms)
        return self._positions[entry - 1] if entry else 0

    def last_entry(self) -> tuple[int, int] | None:
        """Base offset and position of the last entry."""
        return (self._offsets[-1], self._positions[-1]) if self._offsets else None

    def encode(self, base_offset: int, next_offset: int, end_position: int, last_ms: int = NO_TIMESTAMP) -> bytes:
        """The index file of a segment that is closed now."""
        return encode_integers(MAGIC, self.integers(base_offset, next_offset, end_position, last_ms))

    def integers(self, base_offset: int, next_offset: int, end_position: int, last_ms: int) -> array[int]:
        """What a ``SegmentEnd`` has, how many transactions are aborted, the entries and those, for ``index_from``."""
        head = array("q", (base_offset, next_offset, end_position, self.max_timestamp, last_ms, len(self.aborted)))
        return head + self._offsets + self._positions + self._timestamps + self.aborted.integers()


def decode_index(data: bytes, interval_bytes: int) -> tuple[SegmentEnd, SparseIndex]:
    """What ``SparseIndex.encode`` wrote. Raises ``ChecksumError`` unless it is whole."""
    magic = data[:4]
    if magic == OLDEST_MAGIC:
        values = decode_integers(OLDEST_MAGIC, data)
        values.insert(4, NO_TIMESTAMP)
    else:
        values = decode_integers(OLDER_MAGIC if magic == OLDER_MAGIC else MAGIC, data)
    return index_from(values if magic == MAGIC else with_none_aborted(values), interval_bytes)


def with_none_aborted(values: array[int]) -> array[int]:
    """The integers of an index that was written before aborted transactions were noted, when there were none."""
    values.insert(_FIELDS - 1, 0)
    return values


def index_from(values: array[int], interval_bytes: int) -> tuple[SegmentEnd, SparseIndex]:
    """What ``SparseIndex.integers`` gave. Raises ``ChecksumError`` for a number of integers that none has."""
    aborted = values[_FIELDS - 1] if len(values) >= _FIELDS else 0
    if len(values) < _FIELDS + 3 * max(aborted, 0) or aborted < 0 or (len(values) - _FIELDS) % 3:
        raise ChecksumError(f"it holds {len(values)} numbers")
    end = SegmentEnd(*values[: _FIELDS - 1])
    count = (len(values) - _FIELDS) // 3 - aborted
    index = SparseIndex(interval_bytes)
    index._offsets = values[_FIELDS : _FIELDS + count]
    index._positions = values[_FIELDS + count : _FIELDS + 2 * count]
    index._timestamps = values[_FIELDS + 2 * count : _FIELDS + 3 * count]
    index.aborted = aborted_from(values[_FIELDS + 3 * count :])
    index.max_timestamp = end.max_timestamp
    return end, index
