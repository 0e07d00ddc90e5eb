"""The sequences of an idempotent producer's batches (KIP-98). Pure: the core asks, and tells what became of them.

Each partition has an epoch and a next sequence of its own under the producer's id: that is all a daemon compares. A batch
gets its sequence when it is sent for the first time and keeps it through every attempt, so the daemon recognises it and
takes it once. When the daemon misses a sequence that will never be sent again (a record that was out of time, a log that
lost records it had acknowledged), the partition begins a new epoch with 0 and goes on.

In a transaction (``TransactionalSequences``) id and epoch are the coordinator's, one for all partitions, and each begins
with 0. A record has one sequence for as long as the transaction lasts. What is in doubt ends the transaction, and the next
has another epoch.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

from protocol.record_batch import LAST_PRODUCER_EPOCH, sequence_after


class BatchSequence(NamedTuple):
    """What identifies a batch to a daemon, within its partition."""

    producer_id: int
    epoch: int
    first_sequence: int
    transactional: bool = False

    def after(self, count: int) -> BatchSequence:
        """The sequence of what follows ``count`` records."""
        return self._replace(first_sequence=sequence_after(self.first_sequence, count))

    def same_epoch(self, other: BatchSequence | None) -> bool:
        """Whether both are of one producer id and epoch, in which sequences keep the order."""
        return other is not None and self[:2] == other[:2]


@dataclass(slots=True)
class ProducerIdentity:
    """The id a daemon gave this producer; None until it has one, or when a new one is needed.

    That of a ``transactional`` producer is there while a transaction is open, to which nothing has happened that ends it;
    ``epoch`` belongs to it then, and ``used`` says that a batch was sent in the transaction.
    """

    producer_id: int | None = None
    epoch: int = 0
    transactional: bool = False
    used: bool = False

    def begin(self, producer_id: int, epoch: int) -> None:
        """A transaction begins under this name."""
        self.producer_id, self.epoch, self.used = producer_id, epoch, False


class Sequences:
    """The sequences of one partition."""

    __slots__ = ("_identity", "_next")

    transactional = False

    def __init__(self, identity: ProducerIdentity) -> None:
        self._identity = identity
        self._next: BatchSequence | None = None

    @property
    def has_identity(self) -> bool:
        """Whether the producer has an id, without which there are no sequences."""
        return self._identity.producer_id is not None

    @property
    def upcoming(self) -> BatchSequence:
        """The next sequence."""
        producer_id = self._identity.producer_id
        assert producer_id is not None, "there are no sequences before there is a producer id"
        if self._next is None or self._next.producer_id != producer_id:
            return BatchSequence(producer_id, 0, 0)
        return self._next

    def take(self, count: int) -> BatchSequence:
        """The sequence of the next ``count`` records."""
        taken = self.upcoming
        self._next = taken.after(count)
        return taken

    def give_up_identity(self) -> None:
        """Another program writes under this producer's id: a new one is needed."""
        if self._next is not None and self._identity.producer_id == self._next.producer_id:
            self._identity.producer_id = None

    def begin_epoch(self) -> None:
        """The next sequence is 0 of a new epoch, under a new producer id when there is no epoch left."""
        if self._next is None:
            return
        if self._next.epoch < LAST_PRODUCER_EPOCH:
            self._next = BatchSequence(self._next.producer_id, self._next.epoch + 1, 0)
        else:
            self.give_up_identity()


class TransactionalSequences(Sequences):
    """The sequences of one partition in transactions: they begin with 0 under each producer id and epoch."""

    __slots__ = ()

    transactional = True

    @property
    def upcoming(self) -> BatchSequence:
        """The next sequence."""
        producer_id, epoch, after = self._identity.producer_id, self._identity.epoch, self._next
        assert producer_id is not None, "there are no sequences outside a transaction"
        if after is None or after.epoch != epoch or after.producer_id != producer_id:
            return BatchSequence(producer_id, epoch, 0, True)
        return after

    @property
    def last(self) -> int:
        """The sequence that was taken last in the transaction; one was."""
        return sequence_after(self.upcoming.first_sequence, -1)

    def take(self, count: int) -> BatchSequence:
        """The sequence of the next ``count`` records."""
        self._identity.used = True
        return super().take(count)
