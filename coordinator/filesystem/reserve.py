"""A file that keeps room on the data directory's disk for what makes room: retention and the deletion of topics.

What deletes has to write first: where a log begins from now on, a segment for the next append, which topics there are. On a
disk that is full it could not, and the disk would stay full. So it gives up the reserve, does its work, and the reserve is
made again from the room that this has freed. Appends never use it by themselves; they may be faster than what it was given
up for, which then waits until the reserve can be made again.

Nothing reads the file, and nothing is lost when it is missing, cut off or damaged: the next start makes it again.
"""

from __future__ import annotations

import hashlib
import threading
from contextlib import suppress
from typing import Final

from coordinator.filesystem.storage import Storage, is_full
from coordinator.log_output import get_logger

log = get_logger()

PATH: Final = "reserve"
RESERVE_BYTES: Final = 1024 * 1024
"""Room for a checkpoint, what is remembered of thousands of producers, and the metadata of thousands of partitions."""


def content(size: int) -> bytes:
    """What is in a reserve of so many bytes."""
    return hashlib.shake_256(PATH.encode()).digest(size)


class Reserve:
    """The reserve of one data directory. There is none before ``restore`` is called. All methods block."""

    def __init__(self, storage: Storage, size: int = RESERVE_BYTES) -> None:
        self.spent = False
        """Whether ``restore`` has something to do."""
        self._storage = storage
        self._size = size
        self._lock = threading.Lock()

    def release_for(self, error: OSError) -> bool:
        """Gives up the reserve if ``error`` says that the disk is full; returns whether the work is worth another try."""
        if not is_full(error):
            return False
        with self._lock:
            try:
                self._storage.remove(PATH)
            except OSError as failure:  # mostly there is none: it has been spent already
                log.warning("reserve_not_released", reason=str(failure), needed_for=str(error))
                return False
            self.spent = True
        log.warning("reserve_released", needed_for=str(error))
        return True

    def restore(self) -> None:
        """Makes the reserve, unless it is there. A disk that does not take it is no error: ``spent`` stays set."""
        with self._lock:
            self.spent = True
            try:
                self.spent = not (self._is_whole() or self._made())
            except OSError as error:
                log.warning("reserve_not_made", reason=str(error))

    def _is_whole(self) -> bool:
        if not self._storage.exists(PATH):
            return False
        file = self._storage.open(PATH)
        try:
            if file.size() == self._size:
                return True
        finally:
            file.close()
        self._storage.remove(PATH)
        return False

    def _made(self) -> bool:
        file = self._storage.open(PATH, create=True)
        try:
            # File systems that compress would keep no room for zeros.
            file.append([content(self._size)])
            file.sync()  # only now it is certain that there are blocks for it
        except OSError:
            with suppress(OSError):  # the next try removes it
                self._storage.remove(PATH)
            raise
        finally:
            file.close()
        return True
