"""How far a partition may be committed while handlers have several of its records at once. Pure.

Offsets are taken in the order of the log and done in any order. A commit says that *everything* below it is done, so it must
not go beyond the first record that is not, whatever is done behind that one::

    taken   10 11 12 13 14
    done       11    13         -> 10 may be committed; when 10 is done, 12
"""

from __future__ import annotations

from collections import deque


class OffsetsInWork:
    """Offsets that were taken for handlers, from the first that is not done on.

    ``len`` counts those from the first that is not done to the last that was taken, done or not: what comes again when the
    process dies now. Truth is whether any is not done.
    """

    __slots__ = ("_done", "_taken")

    def __init__(self) -> None:
        self._taken: deque[int] = deque()
        self._done: set[int] = set()

    def __len__(self) -> int:
        return len(self._taken)

    @property
    def unfinished(self) -> int:
        """How many are taken and not done."""
        return len(self._taken) - len(self._done)

    @property
    def first(self) -> int | None:
        """The lowest offset that is not done; None when all are."""
        return self._taken[0] if self._taken else None

    def take(self, offset: int) -> None:
        """A handler is to get the record at ``offset``, which is behind all that were taken."""
        assert not self._taken or offset > self._taken[-1], "records are taken in the order of the log"
        self._taken.append(offset)

    def finish(self, offset: int) -> None:
        """The record at ``offset``, which was taken and not done before, is done."""
        taken, done = self._taken, self._done
        if taken[0] != offset:
            done.add(offset)
            return
        taken.popleft()
        while done and taken[0] in done:
            done.remove(taken.popleft())

    def committable(self, position: int) -> int:
        """The offset below which all is done, when ``position`` is the next one to be taken."""
        return self._taken[0] if self._taken else position

    def clear(self) -> int:
        """Forgets all; returns how many were not done."""
        count = self.unfinished
        self._taken.clear()
        self._done.clear()
        return count
