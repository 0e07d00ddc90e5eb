"""What replication asks of a partition's log, and what a follower has it do."""

from __future__ import annotations

from typing import Any, NamedTuple, Protocol

from coordinator.log.leader_epochs import LeaderEpochs


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
    """``Log.reset_to``: the log becomes an empty one that begins at ``offset``.

    ``producers`` is what the leader remembers of those that wrote below it, empty when it did not say.
    """

    offset: int
    producers: bytes = b""


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
