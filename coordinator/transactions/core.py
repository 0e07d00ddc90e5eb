"""The transaction coordinator of one partition of ``__transaction_state``; each request is decided in its own module.

``coordinator.runtime`` owns connections, clock, timers and log, as it does for groups. What a decision has others do leaves
as an order (see ``orders``) once its records are on disk, and what becomes of it comes back with ``marked``.

============================  ==========================================================================================
module                        decides
============================  ==========================================================================================
``identity``                  InitProducerId with a transactional id
``members``                   AddPartitionsToTxn, JoinTransaction
``ending``                    EndTxn, AbortTransaction, the transaction timeout
``completing``                what becomes of end markers
``carrying``                  the partitions that the next transaction of a producer has from the beginning
============================  ==========================================================================================
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Iterator
from typing import Any, ClassVar, Final

from coordinator.runtime.core import LateAnswer
from coordinator.runtime.effects import Effects, ReplyToken, TimerName
from coordinator.transactions import carrying, completing, describe, ending, identity, loading, members, parking
from coordinator.transactions.config import TransactionConfig, TransactionStep
from coordinator.transactions.expiry import EXPIRY_TIMER, Expiry
from coordinator.transactions.orders import MarkerOutcome, TransactionName
from coordinator.transactions.records import (
    Ended,
    Identity,
    IdentityRecord,
    IdentityTombstone,
    MemberRecord,
    TransactionRecord,
    decode_records,
    encode_records,
    unknown_id,
)
from coordinator.transactions.refusals import Outcome, Refusal, error_response
from coordinator.transactions.transaction import (
    COMPLETIONS_TIMER,
    NO_MEMBERS,
    PARKED,
    TIMEOUT,
    Members,
    Transactions,
    Waits,
)
from protocol.errors import ErrorCode
from protocol.messages import Request
from protocol.messages.producers import InitProducerIdRequest
from protocol.messages.transactions import (
    AbortTransactionRequest,
    AddPartitionsToTxnRequest,
    DescribedTransaction,
    DescribeTransactionsRequest,
    DescribeTransactionsResponse,
    EndTxnRequest,
    JoinTransactionRequest,
    ListedTransaction,
    ListTransactionsRequest,
    ListTransactionsResponse,
)

DurableState = dict[str, tuple[IdentityRecord, dict[Identity, Members]]]
"""By transactional id: its identity, and the members of its transactions."""


class TransactionCore:
    """The transactional ids of one partition of ``__transaction_state``.

    Every request is answered exactly once: by the ``Effects`` of its own call or by those of a later one.
    """

    WAITS_FOR_OTHERS: ClassVar[Collection[str]] = frozenset({TIMEOUT})
    """The timer that ends the patience with a producer."""

    encode = staticmethod(encode_records)
    decode = staticmethod(decode_records)
    refusal = staticmethod(error_response)

    def __init__(
        self,
        config: TransactionConfig,
        next_producer_id: Callable[[], int | None],
        ended: Counter[Ended] | None = None,
    ) -> None:
        """``next_producer_id`` gives an id that no producer has had, or None when there is none at hand."""
        self.config = config
        self.transactions = Transactions(next_producer_id, ended)
        self.expiry = Expiry()

    def decide(self, request: Request, step: TransactionStep) -> Effects:
        """Decides a request. Each is answered once, by these effects or by later ones."""
        waits = self._decide(request, step)
        if waits is not None:
            self.transactions.park(waits, request, step)
        return self._with_completions(step)

    def _decide(self, request: Request, step: TransactionStep) -> Waits | None:
        """Answers a request, or returns the end markers it waits for."""
        decide = _DECISIONS.get(type(request))
        assert decide is not None, f"{type(request).__name__} is no request to a transaction coordinator"
        outcome = decide(self.transactions, request, step)
        if isinstance(outcome, Waits):
            return outcome
        step.reply(error_response(request, *outcome) if isinstance(outcome, Refusal) else outcome)
        return None

    def marked(
        self,
        transaction: TransactionName,
        topic_id: str,
        partition: int,
        outcome: MarkerOutcome,
        reason: str,
        step: TransactionStep,
    ) -> Effects:
        """What became of the end marker that an order asked for in one partition. It may be told more than once.

        ``reason`` says why it was refused; ``describe`` shows it.
        """
        state = completing.marked(self.transactions, transaction, topic_id, partition, outcome, reason, step)
        if state is not None and (state.behind.get((topic_id, partition)) if state.markers else state.parked):
            again = parking.ask_again(self.transactions, state, (topic_id, partition), self._decide, step)
            step.effects.begin(state.transactional_id, again)
        return step.effects

    def not_open(self, transaction: TransactionName, step: TransactionStep) -> Effects:
        """What was to be found out by an order ``FindOpen``: the transaction is open in none of its partitions, and none of
        them waits for an answer about it. It may be told more than once, or too late."""
        carrying.not_open(self.transactions, transaction, step)
        return step.effects

    def is_unsure(self, transaction: TransactionName) -> bool:
        """Whether that is still to be found out."""
        state = self.transactions.get(transaction.transactional_id)
        return state is not None and carrying.is_unsure(state, Identity(*transaction[1:]))

    def describe(self, transactional_id: str) -> DescribedTransaction:
        """Everything about one transactional id."""
        return describe.describe(self.transactions.known(transactional_id), transactional_id)

    def list(
        self, states: Collection[str], producer_ids: Collection[int], older_than_ms: int, wall_ms: int
    ) -> list[ListedTransaction]:
        """The transactional ids in one of ``states`` and of one of ``producer_ids``; an empty filter lets all pass.

        ``older_than_ms`` lets those pass whose transaction has been open for longer at ``wall_ms``, -1 all. Sorted by id.
        """
        return describe.list_ids(self.transactions, states, producer_ids, older_than_ms, wall_ms)

    @staticmethod
    def request_is_about(request: Request) -> str:
        """The transactional id of a request; of DescribeTransactions the first, and "" for a list."""
        if isinstance(request, DescribeTransactionsRequest):
            return next(iter(request.transactional_ids), "")
        return getattr(request, "transactional_id", None) or ""

    @staticmethod
    def timer_is_about(name: TimerName) -> str:
        """The transactional id that a timer is about; "" for expiry and completions, which are about those at rest."""
        return name[1] if len(name) > 1 else ""

    def on_timer(self, name: TimerName, step: TransactionStep) -> Effects:
        """Decides a timer that fired; it may be void by now, or have moved."""
        if name == EXPIRY_TIMER:
            self.expiry.on_timer(self.transactions, step)
        elif name == COMPLETIONS_TIMER:
            completing.write_finished(self.transactions, step)
        else:
            state = self.transactions.get(name[1])
            if state is not None and name[0] == PARKED:
                parking.on_timer(self.transactions, state, step)
            elif state is not None:
                ending.on_timeout(self.transactions, state, step)
                self._with_completions(step)
        return step.effects

    def abandon(self, token: ReplyToken, step: TransactionStep) -> Effects:
        """Decides that the connection of a parked request closed: it is not decided any more."""
        state = self.transactions.requests.get(token)
        if state is not None:
            self.transactions.unpark(state, token, step)
        return step.effects

    def apply(self, record: TransactionRecord) -> None:
        """Changes durable state, live and at replay. Nothing else does."""
        transactions = self.transactions
        state = transactions.get(record.transactional_id) or transactions.add(record.transactional_id)
        if isinstance(record, IdentityRecord):
            state.identity = record
        elif isinstance(record, MemberRecord):
            known = state.transactions.get(record.transaction)
            if known is None:
                known = state.transactions[record.transaction] = Members()
            known.take(record)
            if record.name:
                state.names[record.transaction, record.name] = record.producer_id
        else:
            if isinstance(record, IdentityTombstone):
                state.identity = unknown_id(record.transactional_id)
            else:
                known = state.transactions.get(record.transaction, NO_MEMBERS)
                gone = known.pop(record.producer_id, None)
                if gone is not None:
                    state.names.pop((record.transaction, gone.name), None)
                if not known:
                    state.transactions.pop(record.transaction, None)
            if not state.is_known and not state.transactions:
                del transactions[record.transactional_id]

    def loaded(self, step: TransactionStep) -> Iterator[None]:
        """The log has been replayed: markers leave again, transaction timeouts go on; in steps of bounded work."""
        return loading.load(self.transactions, step)

    def start_expiry(self, step: TransactionStep, delay_ms: int) -> Effects:
        """Begins to look for transactional ids that have expired; the first look comes after ``delay_ms``."""
        self.expiry.start(delay_ms, step)
        return step.effects

    def unload(self, step: TransactionStep) -> Effects:
        """The partition is served here no longer: answers what is parked with NOT_COORDINATOR, forgets all ids."""
        self.expiry.stop(step)
        loading.unload(self.transactions, step)
        return step.effects

    def while_loading(self, request: Request) -> LateAnswer | None:
        """Requests are refused until the log has been read, and come again."""
        return None

    def durable_state(self) -> DurableState:
        """What a replay of the log must give back, compared with ``==``."""
        return {
            name: (state.identity, state.transactions) for name, state in self.transactions.items() if state.is_durable
        }

    def _with_completions(self, step: TransactionStep) -> Effects:
        """What is written anyway takes along which transactions are complete."""
        if step.effects.records and self.transactions.finished:
            completing.write_finished(self.transactions, step)
        return step.effects


def _describe(
    transactions: Transactions, request: DescribeTransactionsRequest, step: TransactionStep
) -> DescribeTransactionsResponse:
    ids = request.transactional_ids
    return DescribeTransactionsResponse(tuple(describe.describe(transactions.known(name), name) for name in ids))


def _list(
    transactions: Transactions, request: ListTransactionsRequest, step: TransactionStep
) -> ListTransactionsResponse:
    states, producer_ids, older_than_ms = (
        request.state_filters,
        request.producer_id_filters,
        request.duration_filter_ms,
    )
    listed = describe.list_ids(transactions, states, producer_ids, older_than_ms, step.now.wall_ms)
    unknown = tuple(name for name in states if name not in describe.STATES)
    return ListTransactionsResponse(ErrorCode.NONE, unknown, tuple(listed))


_DECISIONS: Final[dict[type[Request], Callable[[Transactions, Any, TransactionStep], Outcome]]] = {
    InitProducerIdRequest: identity.init,
    AddPartitionsToTxnRequest: members.add,
    EndTxnRequest: ending.end,
    JoinTransactionRequest: members.join,
    AbortTransactionRequest: ending.abort,
    DescribeTransactionsRequest: _describe,
    ListTransactionsRequest: _list,
}
"""What decides each request."""
