"""What a transaction does to the records of its producer: it lets them in, waits for them, or gives them up."""

from __future__ import annotations

from collections.abc import Callable

from client.errors import CohortError
from client.producer.accumulator import Accumulator
from client.producer.sender import Sender
from client.producer.sequences import ProducerIdentity
from client.transactions.ending import Identity
from client.transactions.transaction import Transaction


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

    async def flush(self) -> None:
        """Waits until each record is acknowledged or has failed."""
        await self._sender.flush(None)

    def abandon(self, why: Callable[[], CohortError]) -> None:
        """Every record fails that is not acknowledged, and nothing is waited for."""
        self._sender.abandon(why)
