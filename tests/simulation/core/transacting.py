"""What a member does that commits in transactions: tells its offsets, has the transaction decided, goes on or goes back.

Each transaction tells its offsets in one request, which may come again. The next one begins at once, before the markers of
the one before are written.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from protocol.errors import ErrorCode
from protocol.messages.offsets import (
    OffsetCommitPartition,
    OffsetCommitRequest,
    OffsetCommitTopic,
    OffsetFetchRequest,
    OffsetFetchResponse,
    OffsetFetchTopic,
)
from protocol.messages.transactions import TxnOffsetCommitRequest, TxnOffsetCommitResponse
from tests.simulation.core.call import COMMIT, FETCH, STALE_TURN, TXN_COMMIT

if TYPE_CHECKING:
    from tests.simulation.core.client import Client
    from tests.simulation.core.transactions import Transaction

MAX_WORK_MS: Final = 1_500
MOST_RECORDS: Final = 3
TOPIC: Final = "t"

_AGAIN: Final = (
    int(ErrorCode.NOT_COORDINATOR),
    int(ErrorCode.COORDINATOR_NOT_AVAILABLE),
    int(ErrorCode.CONCURRENT_TRANSACTIONS),
)
_GONE: Final = (int(ErrorCode.PRODUCER_FENCED), int(ErrorCode.INVALID_PRODUCER_EPOCH))


class Transacting:
    """The producer of one member. ``identity`` outlives the member's processes: a new one aborts what the old one left."""

    def __init__(self, client: Client) -> None:
        self.client = client
        self.world = client.world
        self.identity: tuple[int, int] | None = None
        self.transaction: Transaction | None = None
        self.reads: dict[int, tuple[int, int]] = {}
        """By partition: the next record to read, and the version of the partition when its offset was fetched."""

    def begin(self) -> None:
        """A share is there. Who has it in the generation it had before takes up no second transaction beside the first."""
        client = self.client
        for one in tuple(self.world.transactions.all):
            told = one.request
            if told is not None and (told.member_id, told.generation_id) == (client.member_id, client.generation):
                self.world.transactions.decide(one, committed=False)
        self.fetch()

    def fetch(self, delay_ms: int = 0) -> None:
        """Asks where to begin."""
        client = self.client
        if client.share:
            topics = (OffsetFetchTopic(TOPIC, tuple(client.share)),)
            client.ask(FETCH, OffsetFetchRequest(client.group_id, topics, True), delay_ms)

    def hear_fetch(self, response: OffsetFetchResponse) -> None:
        """Begins where the decided offsets say, once no transaction may move them."""
        client, call = self.client, self.client.main
        assert call is not None
        if response.error_code or any(found.error_code for found in response.topics[0].partitions):
            self.fetch(100)
            return
        self.reads = {
            found.partition_index: (max(found.committed_offset, 0), call.versions[found.partition_index])
            for found in response.topics[0].partitions
        }
        client.positions = {partition: start for partition, (start, _) in self.reads.items()}
        self._work()

    def give_up(self, *, in_doubt: bool) -> None:
        """The member joins again or is gone: its transaction is aborted, now or when it has taken too long.

        Or it is decided by a producer that goes on by itself, and so is a process that does not live any more.
        """
        transaction, self.transaction = self.transaction, None
        if transaction is not None and not in_doubt:
            self.identity = self.world.transactions.decide(transaction, committed=False)
        elif transaction is not None:
            transaction.lingers = True
            self.identity = None  # a producer with another id comes in its place

    def _work(self) -> None:
        client, world = self.client, self.world
        if not client.share or not self.reads:
            return
        if self.identity is None:
            self.identity = world.transactions.new_identity()
        transaction = self.transaction = world.transactions.begin(client.ledger, self.identity)
        first = int(world.transactions.random() * len(client.share))
        some = (client.share[first:] + client.share[:first])[: 1 + int(world.transactions.random() * 2)]
        for partition in some:
            start, version = self.reads[partition]
            end = start + 1 + int(world.transactions.random() * MOST_RECORDS)
            transaction.reads[partition] = (start, end, version)
        transaction.request = TxnOffsetCommitRequest(
            client.group_id,
            client.name,
            *self.identity,
            client.generation,
            client.member_id,
            client.instance,
            (
                OffsetCommitTopic(
                    TOPIC,
                    tuple(OffsetCommitPartition(number, end) for number, (_, end, _) in transaction.reads.items()),
                ),
            ),
        )
        client.ask(TXN_COMMIT, transaction.request, int(world.transactions.random() * MAX_WORK_MS))

    def hear(self, response: TxnOffsetCommitResponse) -> None:
        """The offsets are told, or not."""
        client, world, transaction = self.client, self.world, self.transaction
        code = response.error_code or response.topics[0].partitions[0].error_code
        if transaction is None:
            return
        if code == ErrorCode.NONE:
            if world.has("mixed commits") and world.transactions.random() < 0.3:
                self._commit_beside(transaction)
            world.later(1 + int(world.transactions.random() * 200), self._end, (transaction, client.turn))
        elif code in _AGAIN and client.main is not None:
            client.ask(TXN_COMMIT, client.main.request, 60)
        elif code in _GONE:
            self.give_up(in_doubt=False)
            self.fetch(20)
        else:
            client.refused(code)  # it joins again, and its transaction is aborted

    def _commit_beside(self, transaction: Transaction) -> None:
        """A program that does what it should not: a plain commit of what its transaction is about to commit."""
        client = self.client
        partition = next(iter(transaction.reads))
        request: Any = OffsetCommitRequest(
            client.group_id,
            client.generation,
            client.member_id,
            client.instance,
            (OffsetCommitTopic(TOPIC, (OffsetCommitPartition(partition, transaction.reads[partition][1] + 5),)),),
        )
        self.world.send(client, COMMIT, request, 1, STALE_TURN)

    def _end(self, what: tuple[Transaction, int]) -> None:
        """EndTxn arrives, also of a client that is not the same any more."""
        transaction, turn = what
        client, world = self.client, self.world
        if transaction is not self.transaction or turn != client.turn:
            world.transactions.decide(transaction, transaction.confirmed)
            return
        self.transaction = None
        self.identity = world.transactions.decide(transaction, world.transactions.random() < 0.85)
        if transaction.committed:
            for partition, (_, end, version) in transaction.reads.items():
                self.reads[partition] = (end, version)
                client.positions[partition] = end
            self._work()
        else:
            self.fetch()
