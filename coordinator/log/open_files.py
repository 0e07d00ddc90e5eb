"""Which closed segments keep their file open and their index in memory while no reader uses them: the last ones read.

Counted over all logs of a node. Each log for itself would need few, but ten thousand logs that are read from the beginning
would then need more descriptors than there are, and a daemon without any can neither close a segment nor answer a client.
"""

from __future__ import annotations

from typing import Final

from coordinator.log.segment import Segment

MAX_FILES: Final = 64
MAX_INDEX_BYTES: Final = 64 * 1024 * 1024


class OpenFiles:
    """The closed segments with open files, the one not read for the longest time first. Those being read count as well."""

    def __init__(self, max_files: int = MAX_FILES, max_index_bytes: int = MAX_INDEX_BYTES) -> None:
        self._max_files = max_files
        self._max_index_bytes = max_index_bytes
        self._segments: dict[Segment, int] = {}
        self._index_bytes = 0

    def use(self, segment: Segment) -> None:
        """Notes a segment that is being opened or read, and closes others that no reader uses if there are too many."""
        self.forget(segment)
        size = segment.index.size if segment.index is not None else 0
        self._segments[segment] = size
        self._index_bytes += size
        while len(self._segments) > self._max_files or self._index_bytes > self._max_index_bytes:
            oldest = next((known for known in self._segments if not known.readers and known is not segment), None)
            if oldest is None:
                return
            self.forget(oldest)
            oldest.close_if_unused()

    def forget(self, segment: Segment) -> None:
        """Leaves out a segment that is not part of its log any more."""
        self._index_bytes -= self._segments.pop(segment, 0)
