"""What replication asks of a partition's log, and what a follower has it do."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from itertools import pairwise
from typing import Any, NamedTuple, Protocol

from coordinator.replication.epochs import LeaderEpochs


class Log(Protocol):
    """How far a log is. ``start_offset <= flushed_offset <= written_offset <= end_offset``."""

    @property
    def start_offset(self) -> int:
        """Where the log begins."""

    @property
    def end_offset(self) -> int:
        """The next offset to be given (LEO); what was given may still be queued, and a refused write takes it back."""

    @property
    def written_offset(self) -> int:
        """Below it everything is in the file, and followers may have it."""

    @property
    def flushed_offset(self) -> int:
        """Below it everything is on disk, as far as the log's ``flush`` asks."""

    @property
    def clean_until(self) -> int:
        """Below it the log is compacted: tombstones may be gone."""

    @property
    def epochs(self) -> LeaderEpochs:
        """The leader epochs of its records."""


class TruncateTo(NamedTuple):
    """``Log.truncate_to``: what begins at ``offset`` is given up, durably, before anything else."""

    offset: int


class ResetTo(NamedTuple):
    """``Log.reset_to``: the log becomes an empty one that begins at ``offset``."""

    offset: int


class AppendAsFollower(NamedTuple):
    """``Log.append_as_follower``: whole batches that begin where the log ends. They keep offsets and epochs.

    ``epochs`` are those of the leader in this range. Batches alone do not tell them: compaction may have removed all records
    of an epoch, and stretched the batch before over their offsets.
    """

    records: Any
    epochs: tuple[tuple[int, int], ...]


class DeleteBefore(NamedTuple):
    """``Log.delete_before``: the log begins at ``offset``, durably."""

    offset: int


Order = TruncateTo | ResetTo | AppendAsFollower


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
