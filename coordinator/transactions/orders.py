"""What the transaction core has others do once its records are on disk: write end markers where a transaction wrote, and
look whether one is open."""

from __future__ import annotations

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


class WriteMarkers(NamedTuple):
    """The decision about a transaction is on disk: ``ends`` go into each of ``partitions``.

    A transaction has several orders when its members wrote to different partitions; each partition is in one of them. What
    becomes of it is told to the core with ``TransactionCore.marked``. When the core is loaded it gives the orders again that
    may not be carried out, so writing a marker twice must be harmless.
    """

    transactional_id: str
    producer_id: int
    producer_epoch: int
    ends: tuple[MarkerEnd, ...]
    partitions: tuple[MarkerPartition, ...]

    @property
    def transaction(self) -> TransactionName:
        """Which transaction ends."""
        return TransactionName(self.transactional_id, self.producer_id, self.producer_epoch)


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
