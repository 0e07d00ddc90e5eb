"""What the transaction core has others do once its records are on disk: write end markers where a transaction wrote, and
look whether one is open."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum
from typing import NamedTuple


class TransactionName(NamedTuple):
    """Names a transaction. A producer id and an epoch are used once, so no two have the same name."""

    transactional_id: str
    producer_id: int
    producer_epoch: int


class MarkerEnd(NamedTuple):
    """How the part of one producer in a transaction ended."""

    producer_id: int
    producer_epoch: int
    committed: bool


class MarkerPartition(NamedTuple):
    """A partition in which a marker is to be written; of a group, its partition of ``__consumer_offsets``."""

    topic: str
    topic_id: str
    partition: int

    def __str__(self) -> str:
        return f"{self.topic}-{self.partition}"


@dataclass(slots=True)
class WriteMarkers:
    """The decision about a transaction is on disk: the ends of those who wrote in each of its partitions go there.

    ``verdicts`` has each member, and ``writers`` the members that may have written in each partition. What becomes of each
    partition is told to the core with ``TransactionCore.marked``. When the core is loaded it gives the orders again that may
    not be carried out, so writing a marker twice must be harmless.
    """

    transactional_id: str
    producer_id: int
    producer_epoch: int
    verdicts: Mapping[int, bool]
    writers: Mapping[MarkerPartition, Sequence[int]]
    _last: tuple[Sequence[int], tuple[MarkerEnd, ...]] = field(default=((), ()), init=False, repr=False, compare=False)

    @property
    def transaction(self) -> TransactionName:
        """Which transaction ends."""
        return TransactionName(self.transactional_id, self.producer_id, self.producer_epoch)

    @property
    def partitions(self) -> tuple[MarkerPartition, ...]:
        """Where markers are to be written."""
        return tuple(self.writers)

    def weight(self, partition: MarkerPartition) -> int:
        """How many ends go into a partition: one for each member that wrote there."""
        return len(self.writers[partition])

    def ends(self, partition: MarkerPartition) -> tuple[MarkerEnd, ...]:
        """What goes into a partition, made when it is asked for: ten thousand members may have written in each of many."""
        writers = self.writers[partition]
        if self._last[0] != writers:  # mostly all tasks of a job write to the same partitions
            verdicts, epoch = self.verdicts, self.producer_epoch
            self._last = writers, tuple([MarkerEnd(member, epoch, verdicts.get(member, False)) for member in writers])
        return self._last[1]


class FindOpen(NamedTuple):
    """It is to be found out whether the current transaction is open in one of ``partitions``: after a load the core does not
    know whether partitions that were carried have been written to.

    ``TransactionCore.not_open`` is told when it is open in none of them, and none of them waits for an answer about it.
    Until then it counts as open.
    """

    transactional_id: str
    producer_id: int
    producer_epoch: int
    partitions: tuple[MarkerPartition, ...]

    @property
    def transaction(self) -> TransactionName:
        """Which transaction it is."""
        return TransactionName(self.transactional_id, self.producer_id, self.producer_epoch)


class MarkerOutcome(Enum):
    """What became of the marker of one partition.

    TAKEN: it is in the log or was not needed there, and may not be on disk yet: what the next transaction writes comes after
    it. May be left out. DONE: it is on disk. GONE: the topic with this id is no more. REFUSED: it could not be written and
    is tried again.
    """

    TAKEN = "taken"
    DONE = "done"
    GONE = "gone"
    REFUSED = "refused"
