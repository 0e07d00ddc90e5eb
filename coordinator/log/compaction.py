"""What compaction decides: when, how far, and which records stay. Pure.

A pass reads the *dirty* segments, those behind the point up to which the log is clean, into a map from key to last offset,
then rewrites all closed segments up to there. A record stays if the map knows no later one of its key. A tombstone stays
until its delete horizon: the time of its first cleaning plus the retention; then nothing before it is left of its key.
Records without a key have no place in a compacted log and are dropped.

The map is bounded. A pass that fills it stops there: records behind the end of the map stay as they are.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import takewhile
from typing import Final

from coordinator.log.config import UNLIMITED, LogConfig
from coordinator.log.retention import appended_ms, is_as_old_as
from coordinator.log.segment import Segment
from protocol.columns import Columns
from protocol.errors import ProtocolError
from protocol.record_batch import Attributes, BatchHeader, check_body, decode_columns

MAP_BYTES: Final = 128 * 1024 * 1024
"""About how much memory the map of a pass may use: some 700,000 keys of 20 bytes."""
_ENTRY_BYTES: Final = 170
"""What CPython needs for a dict entry, a bytes object and an int, the key's own bytes aside."""
UNCLEANABLE: Final = Attributes.TRANSACTIONAL | Attributes.CONTROL
"""Such batches need the outcome of their transaction to be judged; none are written yet, and compaction ends there."""


@dataclass(frozen=True, slots=True)
class CompactionResult:
    """What a pass has done. Bytes and segments are those of the closed segments it rewrote."""

    segments_before: int
    segments_after: int
    bytes_before: int
    bytes_after: int
    records_before: int
    records_after: int
    keyless_dropped: int
    clean_until: int
    unreadable_kept: int = 0
    """Batches that are what their producer wrote but do not decode, such as a broken gzip stream."""


def dirty_ratio(closed: Sequence[Segment], clean_until: int) -> float:
    """The share of closed bytes in segments that are not wholly clean, 0 to 1."""
    total = sum(segment.size for segment in closed)
    dirty = sum(segment.size for segment in closed if segment.next_offset > clean_until)
    return dirty / total if total else 0.0


def cleanable(closed: Sequence[Segment], config: LogConfig, now_ms: int) -> list[Segment]:
    """The closed segments that a pass may rewrite: those before the first that is younger than the lag allows."""
    lag_ms = config.min_compaction_lag_ms
    return list(takewhile(lambda segment: lag_ms <= 0 or is_as_old_as(segment, lag_ms, now_ms), closed))


def is_worth_cleaning(cleanable: Sequence[Segment], clean_until: int, config: LogConfig, now_ms: int) -> bool:
    """Whether enough is dirty, or something has waited for as long as it may.

    Half of ``max_compaction_lag_ms`` may pass before the active segment is closed (``retention.is_due_to_close``), so the
    other half is what a closed one may wait.
    """
    dirty = [segment for segment in cleanable if segment.next_offset > clean_until]
    if not dirty:
        return False
    if dirty_ratio(cleanable, clean_until) > config.min_cleanable_dirty_ratio:
        return True
    lag_ms = config.max_compaction_lag_ms
    if lag_ms == UNLIMITED:
        return False
    since_ms = appended_ms(dirty[0], now_ms)  # a timestamp may be earlier, but nothing waits since before its append
    if dirty[0].max_timestamp >= 0:
        since_ms = min(dirty[0].max_timestamp, since_ms)
    return now_ms - since_ms >= lag_ms // 2


def readable(header: BatchHeader, batch: memoryview) -> Columns | None:
    """The columns of a batch, or None when it is what its producer wrote but does not decode.

    The daemon inflates what it takes, but not the headers of records within, and an older one inflated nothing: rubbish must
    not stop compaction, it stays as it is. Raises ``ProtocolError`` for a batch that the disk has damaged.
    """
    check_body(batch, 0, header)
    try:
        columns = decode_columns(batch, 0, header)
        columns.check()
        columns.headers()
    except ProtocolError:
        return None
    return columns


class OffsetMap:
    """The last offset of every key from ``start_offset`` on, in one pass over the batches, in order."""

    def __init__(self, start_offset: int, limit_bytes: int = MAP_BYTES) -> None:
        self.end_offset = start_offset
        self.complete = False
        """Whether no further batch may be added: the map is full, or a batch came that cannot be judged."""
        self._limit_bytes = limit_bytes
        self._bytes = 0
        self._last_offsets: dict[bytes | None, int] = {}

    def add(self, header: BatchHeader, batch: memoryview) -> None:
        """Takes in the next batch, or completes the map. Raises ``ProtocolError`` for a damaged batch."""
        if self.complete or header.attributes & UNCLEANABLE:
            self.complete = True
            return
        columns = readable(header, batch)
        self.end_offset = header.next_offset
        if columns is None:
            return
        base, known = header.base_offset, len(self._last_offsets)
        if columns.flags.keys and columns.count:
            offsets = [base + delta for delta in columns.offset_deltas()]
            keys = columns.keys()
            self._last_offsets.update(zip(keys, offsets, strict=True))
            new, key_bytes = len(self._last_offsets) - known, columns.key_range[1] - columns.key_range[0]
            # Which ones are new would cost more to find out: they are no longer than the longest, and than all.
            if new:
                longest = max(len(key) for key in keys if key is not None)
                self._bytes += new * _ENTRY_BYTES + min(new * longest, key_bytes)
            self._last_offsets.pop(None, None)
        self.complete = self._bytes >= self._limit_bytes

    def superseded(self, key: bytes, offset: int) -> bool:
        """Whether a later record of this key is in the map."""
        return self._last_offsets.get(key, -1) > offset
