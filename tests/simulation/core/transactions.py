"""Members that consume, transform and produce: what their transactions commit, and an observer's book on it.

The coordinator of transactions is played here, without faults of its own: a decision is final at once, and its markers reach
the group core late, twice, together with others, or again and again until they are on disk. What is tried is the group core.

The observer follows each partition of a group: up to where its input is answered by outputs that count. A transaction that
is decided moves that by what it was told, a plain commit and an erasure move it anywhere. It does not look at the core's
records, and forgets what it knew of a partition when a crash may have taken back what moved it.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from random import Random
from typing import TYPE_CHECKING, Any, Final

from protocol.errors import ErrorCode
from protocol.messages.transactions import TxnOffsetCommitRequest
from tests.simulation.core.call import FETCH, TXN_COMMIT, Call
from tests.simulation.core.invariants import (
    ON_ARRIVAL,
    ON_TXN_COMMIT,
    invariant,
    speaks_for_the_generation,
)
from tests.simulation.core.ledger import Ledger

if TYPE_CHECKING:
    from tests.simulation.core.shell import Shell

TIMEOUT_MS: Final = 3_000
"""How long a transaction stays open after its producer is gone, at most."""

MAX_MARKER_MS: Final = 2_500
MARKER_RETRY_MS: Final = 400
SETTLED_MS: Final = 2 * MARKER_RETRY_MS
"""In the calm a marker is on disk so much later at most."""

LAST_EPOCH: Final = 3
"""A producer id has so few epochs that it changes all the time."""

UNKNOWN: Final = -1
"""Where the input of a partition is answered up to, when a crash may have taken back what moved it."""


@dataclass(slots=True, eq=False)
class Transaction:
    """One transaction of one producer."""

    producer_id: int
    epoch: int
    ledger: Ledger
    committed: bool | None = None
    request: TxnOffsetCommitRequest | None = None
    """What its producer tells, always the same."""
    decided_ms: int = 0
    reads: dict[int, tuple[int, int, int]] = field(default_factory=dict)
    """By partition: the input it answers, from and to, and its version when the producer read its offset."""
    told: dict[int, int] = field(default_factory=dict)
    """By partition: its version when the group core accepted the offset."""
    place: int = 0
    """In the order in which transactions were told."""
    confirmed: bool = False
    """That it was told has been answered."""
    lingers: bool = False
    """Its consumer has joined again, and its producer has not heard of it: it commits once its offsets are told."""
    marked: bool = False
    """Its marker has taken effect, but a crash may have taken that back."""
    done: bool = False
    """Its marker is on disk."""
    doubtful: set[int] = field(default_factory=set)
    """Partitions of which a crash may have taken back what was told."""


class Input:
    """How far the input of one partition of a group is answered."""

    __slots__ = ("answered", "decided_place", "version")

    def __init__(self) -> None:
        self.answered = 0
        self.decided_place = 0
        """The place of the last transaction that has ended here and committed: what was told before it counts no more."""
        self.version = 0
        """Counts what has moved it other than by a transaction."""

    def move(self, offset: int) -> None:
        """Something else has moved it."""
        self.answered = offset
        self.version += 1


class Transactions:
    """The coordinator of transactions, and the observer's book."""

    def __init__(self, shell: Shell) -> None:
        self.shell = shell
        self.random = Random(f"transactions {shell.plan.seed}").random
        self.enabled = "transactions" in shell.plan.behaviours
        self.all: list[Transaction] = []
        """Those that are not done."""
        self._current: dict[int, int] = {}
        """The epoch of each producer id that is in use."""
        self._ids = self._told = 0
        self._inputs: dict[tuple[str, int], Input] = {}
        self._unwritten: list[tuple[Input, Transaction | None, int]] = []
        """What has moved since the last flush, or was told: by which transaction, of which partition."""
        self._unmarked: list[Transaction] = []
        """Whose markers take effect with the next flush."""

    def input(self, group_id: str, partition: int) -> Input:
        """The input of a partition."""
        found = self._inputs.get((group_id, partition))
        if found is None:
            found = self._inputs[group_id, partition] = Input()
        return found

    def new_identity(self) -> tuple[int, int]:
        """InitProducerId: a producer id of its own."""
        self._ids += 1
        self._current[self._ids] = 0
        return self._ids, 0

    def begin(self, ledger: Ledger, identity: tuple[int, int]) -> Transaction:
        """A producer begins; its transaction is aborted after a while if it is not decided."""
        transaction = Transaction(*identity, ledger)
        self.all.append(transaction)
        self.shell.later(1_000 + int(self.random() * (TIMEOUT_MS - 1_000)), self._time_out, transaction)
        return transaction

    def decide(self, transaction: Transaction, committed: bool) -> tuple[int, int]:
        """EndTxn: gives the identity of the next transaction. Nothing happens to one that is decided."""
        producer_id, epoch = transaction.producer_id, transaction.epoch
        if transaction.committed is not None:
            return (producer_id, self._current[producer_id]) if producer_id in self._current else self.new_identity()
        transaction.committed = committed
        transaction.decided_ms = self.shell.now_ms
        self.shell.tell(f"transaction {producer_id}, epoch {epoch} {'commits' if committed else 'aborts'}")
        if committed:
            self._count(transaction)
        self._send_marker(transaction)
        if epoch == LAST_EPOCH:
            del self._current[producer_id]
            return self.new_identity()
        self._current[producer_id] = epoch + 1
        return producer_id, epoch + 1

    def refusal(self, call: Call) -> ErrorCode | None:
        """Admission of a TxnOffsetCommit, as leaders do it: what is not open here must be going on at the coordinator."""
        request: Any = call.request
        open_epoch = self.shell.core.open_epoch(request.producer_id)
        if open_epoch is not None and open_epoch != request.producer_epoch:
            later = open_epoch > request.producer_epoch
            return ErrorCode.INVALID_PRODUCER_EPOCH if later else ErrorCode.CONCURRENT_TRANSACTIONS
        if open_epoch is None and self._current.get(request.producer_id) != request.producer_epoch:
            return ErrorCode.PRODUCER_FENCED
        return None

    def accepted(self, call: Call) -> None:
        """The group core has accepted what a transaction tells."""
        transaction = self.of(call)
        group_id = transaction.ledger.group_id
        for partition in transaction.reads:
            known = self.input(group_id, partition)
            if partition not in transaction.told:  # what comes twice is told once
                self._told += 1
                transaction.place = self._told
                transaction.told[partition] = known.version
            if not self.shell.journal.at_rest:
                self._unwritten.append((known, transaction, partition))

    def of(self, call: Call) -> Transaction:
        """The transaction that a request is about; of one that is done, nothing is accepted any more."""
        request: Any = call.request
        return next(
            one for one in self.all if (one.producer_id, one.epoch) == (request.producer_id, request.producer_epoch)
        )

    def moved(self, group_id: str, partition: int, offset: int) -> None:
        """A plain commit or an erasure took effect."""
        known = self.input(group_id, partition)
        known.move(offset)
        if not self.shell.journal.at_rest:
            self._unwritten.append((known, None, partition))

    def erased(self, group_id: str, partitions: range) -> None:
        """A group was deleted, and what transactions were about to commit for it."""
        for partition in partitions:
            self.moved(group_id, partition, 0)
        for transaction in self.all:
            if transaction.ledger.group_id == group_id:
                transaction.told.clear()

    def flushed(self) -> None:
        """Everything is on disk."""
        self._unwritten.clear()
        for transaction in self._unmarked:
            transaction.done = True
            self.all.remove(transaction)
        self._unmarked.clear()

    def lost(self) -> None:
        """A crash has taken what was not on disk, or some of it."""
        for known, transaction, partition in self._unwritten:
            if transaction is None:
                known.answered = UNKNOWN
            else:
                transaction.doubtful.add(partition)
        self._unwritten.clear()
        self._unmarked.clear()  # they come again

    def answered(self, call: Call, response: Any) -> None:
        """The answer to a TxnOffsetCommit leaves."""
        if not response.error_code and not response.topics[0].partitions[0].error_code:
            request: Any = call.request
            for one in self.all:
                if (one.producer_id, one.epoch) == (request.producer_id, request.producer_epoch):
                    one.confirmed = True
                    if one.lingers:
                        self.shell.later(1 + int(self.random() * 500), self._commit, one)

    def unsettled(self) -> Iterator[str]:
        """What is not as it should be some time after the last fault: members go on, so one that was decided long ago."""
        now_ms = self.shell.now_ms
        for one in self.all:
            if one.committed is not None and one.decided_ms < now_ms - SETTLED_MS:
                yield f"the marker of producer {one.producer_id}, epoch {one.epoch}, is not on disk"

    def _count(self, transaction: Transaction) -> None:
        """What a transaction has told counts, unless something else has moved the partition since."""
        for partition, (start, end, version) in transaction.reads.items():
            known = self.input(transaction.ledger.group_id, partition)
            if partition in transaction.doubtful:
                known.answered = UNKNOWN
            elif transaction.told.get(partition) == known.version:
                if version == known.version:
                    each_input_is_answered_once(transaction, partition, start, known.answered)
                known.answered = end

    def _commit(self, transaction: Transaction) -> None:
        self.decide(transaction, committed=True)

    def _time_out(self, transaction: Transaction) -> None:
        if transaction.committed is None:
            self.decide(transaction, committed=False)

    def _send_marker(self, transaction: Transaction) -> None:
        calm = self.shell.calm
        delay_ms = int(self.random() * (10 if calm or self.random() < 0.5 else MAX_MARKER_MS))
        self.shell.later(delay_ms, self._deliver_marker, transaction)
        if not calm and self.random() < 0.2:
            self.shell.later(int(self.random() * 2 * MAX_MARKER_MS), self._deliver_again, transaction)

    def _deliver_again(self, transaction: Transaction) -> None:
        """A marker that was doubled on its way; its transaction may be done long since."""
        self._take_effect([transaction])

    def _deliver_marker(self, transaction: Transaction) -> None:
        """A marker arrives, or is lost; it is sent again until it is known to be on disk."""
        if transaction.done:
            return
        if self.shell.calm or self.random() < 0.8:
            together = [one for one in self.all if one.committed is not None and self.random() < 0.3]
            self._take_effect([transaction, *(one for one in together if one is not transaction)])
        if not transaction.done:
            self.shell.later(MARKER_RETRY_MS, self._deliver_marker, transaction)

    def _take_effect(self, transactions: list[Transaction]) -> None:
        self.shell.mark([(one.producer_id, one.epoch, bool(one.committed)) for one in transactions], transactions)
        for transaction in transactions:
            transaction.marked = True
            for partition in transaction.told if transaction.committed else ():
                known = self.input(transaction.ledger.group_id, partition)
                known.decided_place = max(known.decided_place, transaction.place)
            if not transaction.done and transaction not in self._unmarked:
                self._unmarked.append(transaction)
        if self.shell.journal.at_rest:
            self.flushed()


@invariant()
def each_input_is_answered_once(transaction: Transaction, partition: int, start: int, answered: int) -> None:
    assert answered in (UNKNOWN, start), (
        f"a transaction of producer {transaction.producer_id} commits outputs for the input of partition {partition} from "
        f"{start}, but it is answered up to {answered}"
    )


@invariant(ON_ARRIVAL[FETCH])
def undecided_offsets_are_waited_for(shell: Shell, call: Call, response: Any) -> None:
    if shell.transactions.enabled and response is not None and not response.error_code:
        told = {found.partition_index for found in response.topics[0].partitions if not found.error_code}
        for transaction in shell.transactions.all:
            if transaction.confirmed and not transaction.marked and transaction.ledger is call.ledger:
                for partition in told & transaction.told.keys() - transaction.doubtful:
                    known = shell.transactions.input(call.ledger.group_id, partition)
                    overtaken = transaction.told[partition] != known.version or transaction.place < known.decided_place
                    assert overtaken, (
                        f"partition {partition} is told, but a transaction of producer {transaction.producer_id} has not "
                        f"ended"
                    )


@invariant(ON_ARRIVAL[FETCH])
def offsets_go_with_their_outputs(shell: Shell, call: Call, response: Any) -> None:
    """A new owner begins where the outputs that count end."""
    if shell.transactions.enabled and response is not None and not response.error_code:
        for found in response.topics[0].partitions:
            if not found.error_code:
                known = shell.transactions.input(call.ledger.group_id, found.partition_index)
                position = max(found.committed_offset, 0)
                if known.answered == UNKNOWN:
                    known.answered = position
                assert known.answered == position, (
                    f"the owner of partition {found.partition_index} begins at {position}, but its input is answered up "
                    f"to {known.answered}"
                )


@invariant(ON_TXN_COMMIT)
def transactions_of_an_old_generation_commit_nothing(shell: Shell, call: Call, request: TxnOffsetCommitRequest) -> None:
    speaks_for_the_generation(shell, request.group_id, request)


@invariant(ON_ARRIVAL[TXN_COMMIT])
def a_txn_offset_commit_is_answered_at_once(shell: Shell, call: Call, response: Any) -> None:
    assert response is not None, "a TxnOffsetCommit waits"


@invariant()
def no_transaction_hangs(shell: Shell) -> None:
    """Some time after the last client is gone each transaction has ended, and no offset is undecided."""
    assert not shell.transactions.all, f"{len(shell.transactions.all)} transactions have not ended"
    assert not shell.core.groups.open_transactions, f"pending offsets of {list(shell.core.groups.open_transactions)}"
    for group in shell.core.groups.values():
        assert not group.pending_offsets, f"pending offsets of {group.group_id} that no producer knows"
