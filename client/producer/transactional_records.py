"""What a transaction does to the records of its producer: it lets them in, waits for them, or gives them up."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from client.errors import CohortError
from client.producer.accumulator import Accumulator
from client.producer.sender import Sender
from client.producer.sequences import ProducerIdentity
from client.transactions.ending import Identity
from client.transactions.transaction import Transaction
from protocol.messages.transactions import LastSequence, UnacknowledgedTopic

_MOST_UNACKNOWLEDGED: Final = 256
"""Partitions that one commit may name; daemons look at no more."""


class TransactionalRecords:
    """The records of one producer; see ``client.transactions.lifecycle.Records``.

    ``let_in`` is told whether ``send`` takes records.
    """

    def __init__(
        self, identity: ProducerIdentity, sender: Sender, accumulator: Accumulator, let_in: Callable[[bool], None]
    ) -> None:
        self._identity = identity
        self._sender = sender
        self._accumulator = accumulator
        self._let_in = let_in

    @property
    def used(self) -> bool:
        """Whether a record was sent, perhaps, since ``open``."""
        return self._identity.used

    def open(self, transaction: Transaction, identity: Identity) -> None:
        """Records are taken from now on, as part of this transaction."""
        self._identity.begin(*identity)
        self._accumulator.transaction = transaction
        self._let_in(True)

    def close(self) -> None:
        """No more are taken, also of calls that wait for room; those that are queued are sent."""
        self._accumulator.transaction = None
        self._let_in(False)

    async def send_all(self) -> bool:
        """Returns once each record was sent; False when some are not on their way yet."""
        return await self._sender.send_all()

    def unacknowledged(self) -> tuple[UnacknowledgedTopic, ...] | None:
        """What is sent and has no answer yet, as EndTxn has it.

        None when that is more than it may name, or something waits to be sent (again).
        """
        sent = self._sender.unacknowledged()
        if sent is None or len(sent) > _MOST_UNACKNOWLEDGED:
            return None
        topics: dict[str, list[LastSequence]] = {}
        for (topic, partition), sequence in sent.items():
            topics.setdefault(topic, []).append(LastSequence(partition, sequence))
        return tuple(UnacknowledgedTopic(topic, tuple(last)) for topic, last in topics.items())

    @property
    def unsettled(self) -> bool:
        """Whether what became of some record is not told yet."""
        return self._sender.unsettled

    def withhold_failures(self) -> None:
        """See ``Sender.withhold_failures``."""
        self._sender.withhold_failures()

    def stored(self) -> None:
        """The transaction is committed: so each record is stored."""
        self._sender.stored()

    async def flush(self, timeout_s: float | None = None) -> None:
        """Waits until each record is acknowledged or has failed."""
        await self._sender.flush(timeout_s)

    def abandon(self, why: Callable[[], CohortError], *, in_doubt: bool = False) -> None:
        """Every record fails that is not acknowledged, and nothing is waited for. See ``Sender.abandon``."""
        self._sender.abandon(why, in_doubt=in_doubt)
