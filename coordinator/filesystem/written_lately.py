"""What leaders wrote lately, kept in memory for followers that come right behind: they need no read of the disk for it.

A follower asks for a batch a moment after it was written, and again as soon as it has what came before. By then the batch
may be synced, and a read would take a thread, a copy out of the page cache and a look at each header. What is kept is
bounded in bytes over all logs of a data directory; what was written first goes first.

Only what is in the file is kept, and only while nothing of it can be taken back: a log that may be truncated forgets it all.
"""

from __future__ import annotations

from collections import deque
from typing import Final

KEPT_BYTES: Final = 32 * 1024 * 1024
"""Of all logs of a data directory together."""


class WrittenLately:
    """The bound that the logs of a data directory share."""

    def __init__(self, max_bytes: int = KEPT_BYTES) -> None:
        self._max_bytes = max_bytes
        self._order: deque[tuple[LatestWrites, int, int]] = deque()
        self._bytes = 0

    def note(self, writes: LatestWrites, base_offset: int, size: int) -> None:
        """Counts what a log keeps, and has those forget that have kept something for the longest time."""
        self._order.append((writes, base_offset, size))
        self._bytes += size
        while self._bytes > self._max_bytes:
            oldest, offset, size = self._order.popleft()
            oldest.drop(offset)
            self._bytes -= size


class LatestWrites:
    """What one log keeps."""

    __slots__ = ("_bound", "_chunks")

    def __init__(self, bound: WrittenLately) -> None:
        self._bound = bound
        self._chunks: dict[int, tuple[bytes, int]] = {}
        """Whole batches, and the offset behind them, by the offset that they begin at."""

    def add(self, base_offset: int, next_offset: int, content: bytes) -> None:
        """Keeps whole batches as they are in the file."""
        self._chunks[base_offset] = content, next_offset
        self._bound.note(self, base_offset, len(content))

    def drop(self, base_offset: int) -> None:
        """Forgets what begins at an offset."""
        self._chunks.pop(base_offset, None)

    def clear(self) -> None:
        """Forgets all: something else may come to these offsets."""
        self._chunks.clear()

    def read(self, offset: int, max_bytes: int) -> tuple[bytes, int]:
        """Whole batches from exactly ``offset`` on, within a bound, and the offset behind them; nothing if not kept."""
        chunks, found, size = self._chunks, list[bytes](), 0
        while (chunk := chunks.get(offset)) is not None and size + len(chunk[0]) <= max_bytes:
            content, offset = chunk
            found.append(content)
            size += len(content)
        return (found[0] if len(found) == 1 else b"".join(found)), offset
