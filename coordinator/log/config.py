"""The settings of a partition log."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, Literal

UNLIMITED: Final = -1
"""For retention and ages: without a bound."""


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
    compact: bool = False
    """Whether the records of a key are worth keeping only up to the next one (``cleanup.policy`` has ``compact``)."""
    delete: bool = True
    """Whether old segments are deleted by time and size (``cleanup.policy`` has ``delete``)."""
    retention_ms: int = UNLIMITED
    """A segment is deleted when its newest record is as old as this, in milliseconds; see ``coordinator.log.retention``."""
    retention_bytes: int = UNLIMITED
    """The oldest segments are deleted as long as the others together have at least this many bytes."""
    segment_ms: int = UNLIMITED
    """A segment takes no more appends this long after its first one, so that retention and compaction get to it."""
    min_compaction_lag_ms: int = 0
    """Compaction leaves a segment alone until its newest record is as old as this, in milliseconds."""
    max_compaction_lag_ms: int = UNLIMITED
    """Compaction does not wait for the dirty ratio when something waits for it as long as this, in milliseconds."""
    min_cleanable_dirty_ratio: float = 0.5
    """Compaction starts when more than this share of the closed bytes has not been compacted yet."""
    max_message_bytes: int = 1024 * 1024
    """Bytes of the largest batch that a producer may append."""
    message_timestamp_type: Literal["CreateTime", "LogAppendTime"] = "CreateTime"
    """Whether records have their producer's time or that of their append."""
    min_insync_replicas: int = 1
    """Replicas that have to be in sync for an append that asks for all."""
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
