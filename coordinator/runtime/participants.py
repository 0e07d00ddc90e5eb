"""Participants of transactions as the admission of writes sees them, its way to the coordinators, and its bounds."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Final, NamedTuple, Protocol

from protocol.messages.transactions import AddPartitionsToTxnRequest, AddPartitionsToTxnResponse, TransactionTopic

ANSWER_TIMEOUT_S: Final = 10.0
"""How long the coordinator may take: it lets a request wait for end markers for five seconds, and writes to its disk."""

MAX_WAITING: Final = 64
"""Writes of one transaction to one participant that wait for the coordinator's answer; a client has fewer under way."""

WRITES_AT_ONCE: Final = 64
"""Writes that are taken in one turn of the loop once the coordinator has answered: some 30 µs each."""

ParticipantKey = tuple[str, str, int]
"""Topic, topic id and partition of a log; for groups those of their partition of ``__consumer_offsets``."""


class Participant(Protocol):
    """Where transactions are open: the log of a partition, or a shard of groups."""

    def open_epoch(self, producer_id: int) -> int | None:
        """The epoch of the producer's transaction that is open here; None when none is."""


class Transactions(Protocol):
    """The way to the coordinators of transactions."""

    def add(self, request: AddPartitionsToTxnRequest, done: Callable[[AddPartitionsToTxnResponse], None]) -> None:
        """Asks the coordinator; ``done`` is called once with its answer, perhaps at once."""


class Timer(Protocol):
    """A call that has not been made yet."""

    def cancel(self) -> None:
        """It is not wanted any more."""


CallLater = Callable[[float, Callable[[], None]], Timer]
"""Calls a function after so many seconds, as the loop's ``call_later`` does."""


class TransactionName(NamedTuple):
    """The transaction that a write belongs to."""

    transactional_id: str
    producer_id: int
    producer_epoch: int

    def __str__(self) -> str:
        return f"producer {self.producer_id} of transactional id {self.transactional_id!r}, epoch {self.producer_epoch}"


def by_topic(keys: Iterable[ParticipantKey]) -> tuple[TransactionTopic, ...]:
    """Participants as a request names them."""
    topics: dict[tuple[str, str], list[int]] = {}
    for topic, topic_id, partition in keys:
        topics.setdefault((topic, topic_id), []).append(partition)
    return tuple(TransactionTopic(*topic, tuple(partitions)) for topic, partitions in topics.items())
