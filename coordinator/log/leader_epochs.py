"""Leader epochs of a log: which leader wrote from which offset on (KIP-101, KIP-279)."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Sequence
from itertools import pairwise
from typing import Final, NamedTuple, Protocol

NO_EPOCH: Final = -1
"""The epoch of no record at all."""


class EpochEnd(NamedTuple):
    """An epoch, and the offset behind its last record."""

    epoch: int
    end: int


class LeaderEpochs:
    """Epochs and their first offsets, both rising. The log's end is not in it: callers say where that is."""

    __slots__ = ("_epochs", "_starts")

    def __init__(self, entries: Iterable[tuple[int, int]] = ()) -> None:
        self._epochs: list[int] = []
        self._starts: list[int] = []
        for epoch, start in entries:
            self.begin(epoch, start)

    @property
    def entries(self) -> list[tuple[int, int]]:
        """Epochs with their first offsets."""
        return list(zip(self._epochs, self._starts, strict=True))

    @property
    def earliest(self) -> int:
        """The epoch of the first record that is left."""
        return self._epochs[0] if self._epochs else NO_EPOCH

    @property
    def latest(self) -> int:
        """The newest epoch, which may have no record yet."""
        return self._epochs[-1] if self._epochs else NO_EPOCH

    def begin(self, epoch: int, offset: int) -> bool:
        """From ``offset`` on, where the log ends, records are of ``epoch``. Returns whether that is new.

        Epochs without records are replaced: a leader that appended nothing may follow one whose records are older. Raises
        ``ValueError`` when the last record is of a later epoch.
        """
        if self._epochs and self._epochs[-1] == epoch and self._starts[-1] <= offset:
            return False
        self.cut(offset)
        if self.latest >= epoch:
            if self.latest == epoch:
                return False
            raise ValueError(f"epoch {epoch} cannot begin at offset {offset}, behind records of epoch {self.latest}")
        self._epochs.append(epoch)
        self._starts.append(offset)
        return True

    def end_of(self, asked: int, log_end: int) -> EpochEnd:
        """The largest epoch that is not above ``asked``, and its end.

        If all are above it: ``asked`` itself, and where the first begins, as what was before is not judged.
        """
        place = bisect_right(self._epochs, asked)
        end = self._starts[place] if place < len(self._starts) else log_end
        return EpochEnd(self._epochs[place - 1] if place else asked, end)

    def at(self, offset: int) -> int:
        """The epoch of the record at ``offset``, ``NO_EPOCH`` before the first."""
        place = bisect_right(self._starts, offset)
        return self._epochs[place - 1] if place else NO_EPOCH

    def within(self, first: int, end: int) -> tuple[tuple[int, int], ...]:
        """The epochs of the offsets from ``first`` to below ``end``, each with where it begins there."""
        if first >= end:
            return ()
        places = range(max(0, bisect_right(self._starts, first) - 1), bisect_left(self._starts, end))
        return tuple((self._epochs[place], max(first, self._starts[place])) for place in places)

    def cut(self, end: int) -> None:
        """The log was truncated to ``end``: epochs that began there or later are gone."""
        place = bisect_left(self._starts, end)
        del self._epochs[place:], self._starts[place:]

    def raise_start(self, start: int) -> None:
        """Records below ``start`` were deleted: the epoch of the first that is left begins there."""
        place = bisect_right(self._starts, start) - 1
        if place >= 0:
            del self._epochs[:place], self._starts[:place]
            self._starts[0] = start


class Batch(Protocol):
    """What a follower looks at in a batch."""

    @property
    def base_offset(self) -> int:
        """Its first offset."""

    @property
    def next_offset(self) -> int:
        """The offset behind its last."""

    @property
    def leader_epoch(self) -> int:
        """The epoch of the leader that took it."""


class NotAContinuationError(Exception):
    """A leader's batches do not continue the follower's log. The session ends; the log is as it was."""


def check_continues(
    batches: Sequence[Batch], epochs: Sequence[tuple[int, int]], end_offset: int, last_epoch: int
) -> None:
    """Whether batches and epochs of a leader may be appended where the log ends, behind a record of ``last_epoch``.

    Batches have no gap between them, epochs rise, and no batch is of a later epoch than its offsets. It may be of an earlier
    one, which compaction has stretched over them. Raises ``NotAContinuationError``.
    """
    at = end_offset
    for batch in batches:
        if batch.base_offset != at:
            raise NotAContinuationError(f"the log ends at offset {at}, a batch begins at {batch.base_offset}")
        at = batch.next_offset
    if not epochs or epochs[0][1] != end_offset or epochs[0][0] < last_epoch:
        raise NotAContinuationError(f"epochs {epochs} do not begin at offset {end_offset}, behind epoch {last_epoch}")
    for (epoch, start), (following, next_start) in pairwise(epochs):
        if following <= epoch or next_start <= start:
            raise NotAContinuationError(f"epochs {epochs} do not rise")
    starts = [start for _, start in epochs]
    for batch in batches:
        epoch = epochs[bisect_right(starts, batch.base_offset) - 1][0]
        if batch.leader_epoch > epoch:
            raise NotAContinuationError(
                f"the batch at offset {batch.base_offset} is of epoch {batch.leader_epoch}, its offsets of epoch {epoch}"
            )
