"""Partition logs: segments on disk, group commit, recovery, look-ups and compaction. Start reading at ``partition``."""

from coordinator.log.compaction import CompactionResult
from coordinator.log.config import LogConfig
from coordinator.log.errors import LogClosedError, LogDamagedError, LogError, LogWriteError, OffsetNotInLogError
from coordinator.log.partition import PartitionLog

__all__ = [
    "PartitionLog",
    "LogConfig",
    "CompactionResult",
    "LogError",
    "LogDamagedError",
    "LogWriteError",
    "LogClosedError",
    "OffsetNotInLogError",
]
