"""The queue of one log's appends: cut into chunks of one segment each, with the index entries worked out. Pure."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field
from typing import Final

from coordinator.log.config import LogConfig
from coordinator.log.index import NO_TIMESTAMP
from coordinator.log.producers import Producers, Snapshot
from protocol.record_batch import BatchHeader

_PRODUCER_BYTES: Final = 64
"""What a snapshot has of a producer, about."""


@dataclass(slots=True)
class Chunk:
    """Batches that wait to be written into one segment, with what the log has to note when they are."""

    base_offset: int
    roll: bool
    """Whether a new segment begins with this chunk."""
    batches: list[tuple[int, BatchHeader, bytes]] = field(default_factory=list)
    entries: list[tuple[int, int, int]] = field(default_factory=list)
    """Index entries: base offset, position in the segment, largest timestamp before it in the segment."""
    size: int = 0
    next_offset: int = 0
    max_timestamp: int = NO_TIMESTAMP
    """Largest timestamp of the segment, this chunk included."""
    last_ms: int = NO_TIMESTAMP
    """Latest wall time of an append."""
    frees_room: bool = False
    """For a chunk that begins a segment: whether retention removes the one before."""
    producers: Snapshot = ()
    """For a chunk that begins a segment: what is remembered of producers before it."""


class AppendQueue:
    """Knows how full the active segment will be once everything queued is written, and where the next one begins."""

    __slots__ = ("_chunks", "_config", "_indexed", "_max_timestamp", "_roll", "_size", "end_offset", "queued_bytes")

    def __init__(self, config: LogConfig) -> None:
        self._config = config
        self._chunks: deque[Chunk] = deque()
        self._roll = False
        self._size = 0
        self._indexed = 0
        self._max_timestamp = NO_TIMESTAMP
        self.end_offset = 0
        self.queued_bytes = 0

    def __bool__(self) -> bool:
        return bool(self._chunks)

    def configure(self, config: LogConfig) -> None:
        """From now on the log has these settings."""
        self._config = config

    def roll(self, producers: Producers, frees_room: bool = False) -> bool:
        """Begins a new segment at ``end_offset``, whatever comes next; returns False when the last one will be empty."""
        if not self._size:
            return False
        self._begin_segment(producers, frees_room)
        return True

    def _begin_segment(self, producers: Producers, frees_room: bool = False) -> None:
        self._roll = False
        end = self.end_offset
        chunk = Chunk(end, roll=True, next_offset=end, frees_room=frees_room, producers=list(producers))
        self._chunks.append(chunk)
        self._size = self._indexed = 0
        self._max_timestamp = NO_TIMESTAMP

    def add(self, header: BatchHeader, batch: bytes, producers: Producers, now_ms: int = NO_TIMESTAMP) -> int:
        """Queues a batch and returns the offset it will have; ``producers`` remembers all batches before it."""
        base_offset = self.end_offset
        length = len(batch)
        # A segment begins with what is remembered of producers: not before that is less than what the last one holds.
        segment_bytes = max(self._config.segment_bytes, len(producers) * _PRODUCER_BYTES)
        if self._roll or (self._size and self._size + length > segment_bytes):
            self._begin_segment(producers)
        elif not self._chunks:
            self._chunks.append(Chunk(base_offset, roll=False))
        position = self._size
        chunk = self._chunks[-1]
        if position - self._indexed >= self._config.index_interval_bytes:
            chunk.entries.append((base_offset, position, self._max_timestamp))
            self._indexed = position
        if header.max_timestamp > self._max_timestamp:
            self._max_timestamp = header.max_timestamp
        chunk.batches.append((base_offset, header, batch))
        chunk.size += length
        chunk.next_offset = self.end_offset = base_offset + header.last_offset_delta + 1
        chunk.max_timestamp = self._max_timestamp
        if now_ms > chunk.last_ms:
            chunk.last_ms = now_ms
        self._size = position + length
        self.queued_bytes += length
        return base_offset

    def take(self) -> Chunk:
        """The chunk to write next. Whoever takes it gives its bytes back with ``written`` or drops all with ``reset``."""
        return self._chunks.popleft()

    def written(self, chunk: Chunk) -> None:
        """The chunk is in the log: its bytes are no longer queued."""
        self.queued_bytes = max(self.queued_bytes - chunk.size, 0)

    def reset(self, end_offset: int, size: int, indexed: int, max_timestamp: int, roll: bool) -> None:
        """Drops all that is queued and starts from the active segment as it is.

        ``roll`` makes the next batch begin a new segment: a roll that failed may be half done, at just this offset.
        """
        self._chunks.clear()
        self._roll = roll
        self._size = size
        self._indexed = indexed
        self._max_timestamp = max_timestamp
        self.end_offset = end_offset
        self.queued_bytes = 0
