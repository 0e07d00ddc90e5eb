"""The settings of a partition log."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal


@dataclass(frozen=True, slots=True)
class LogConfig:
    """Settings of one partition log. Raises ``ValueError`` for values outside their bounds."""

    segment_bytes: int = 64 * 1024 * 1024
    """A segment is closed before it would grow beyond this; a single larger batch gets a segment of its own."""
    index_interval_bytes: int = 4096
    """About one index entry for so many bytes of log."""
    flush: Literal["ack", "os"] = "ack"
    """``ack``: acknowledged means on disk. ``os``: acknowledged means handed to the operating system, which is lost
    with the machine but not with the process (Kafka's default promise)."""
    min_cleanable_dirty_ratio: float = 0.5
    """Compaction starts when more than this share of the closed bytes has not been compacted yet."""
    delete_retention_ms: int = 86_400_000
    """How long compaction keeps a tombstone after it first cleaned it, in milliseconds."""

    def __post_init__(self) -> None:
        if self.segment_bytes < 1 or self.index_interval_bytes < 1 or self.delete_retention_ms < 0:
            raise ValueError(
                "segment_bytes and index_interval_bytes must be at least 1, delete_retention_ms at least 0"
            )
        if self.flush not in ("ack", "os"):
            raise ValueError(f"flush is {self.flush!r}: use 'ack' or 'os'")
        if not 0 <= self.min_cleanable_dirty_ratio <= 1:
            raise ValueError(f"min_cleanable_dirty_ratio is {self.min_cleanable_dirty_ratio}: use 0 to 1")
