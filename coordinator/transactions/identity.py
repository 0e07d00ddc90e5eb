"""The identity of a transactional id: InitProducerId, and the record that each change of it writes.

Each transaction has an epoch of its own (KIP-890), so an identity is used once: what is late belongs to nothing. A Kafka
producer from before that keeps the epoch it was given here, until this or anything but its own EndTxn ends it.
"""

from __future__ import annotations

from typing import Any, Final

from coordinator.transactions import ending
from coordinator.transactions.config import TransactionStep
from coordinator.transactions.records import (
    NO_PRODUCER,
    Ended,
    Identity,
    IdentityRecord,
    unknown_id,
)
from coordinator.transactions.refusals import (
    Outcome,
    Refusal,
    id_fault,
    no_producer_id,
    not_current,
    timeout_fault,
    too_many_ids,
)
from coordinator.transactions.transaction import TransactionalId, Transactions, Waits
from protocol.errors import ErrorCode
from protocol.messages.producers import (
    NO_OUTCOME,
    OUTCOME_ABORTED,
    OUTCOME_COMMITTED,
    InitProducerIdRequest,
    InitProducerIdResponse,
)

_NOT_GIVEN: Final = Identity(NO_PRODUCER, -1)


def init(transactions: Transactions, request: InitProducerIdRequest, step: TransactionStep) -> Outcome:
    """Decides an InitProducerId with a transactional id."""
    transactional_id = request.transactional_id or ""
    fault = id_fault(transactional_id, step.config) or timeout_fault(request.transaction_timeout_ms, step.config)
    if fault is not None:
        return fault
    state = transactions.known(transactional_id)
    if state is None:
        new = introduce(transactions, transactional_id, request.transaction_timeout_ms, "", step)
        return new if isinstance(new, Refusal) else _answer(new, NO_OUTCOME)
    given = Identity(request.producer_id, request.producer_epoch) if request.producer_id >= 0 else _NOT_GIVEN
    current, previous = state.identity, state.identity.previous
    if given in (current.identity, current.kept):
        return _take_over(transactions, state, Ended.RENEWED, request, step)
    if given == _NOT_GIVEN:
        return _take_over(transactions, state, Ended.FENCED, request, step)
    if previous is not None and given == previous.identity and previous.how is not Ended.FENCED:
        outcome = OUTCOME_COMMITTED if previous.how is Ended.COMMITTED else OUTCOME_ABORTED
        return _answer(current, outcome)
    return not_current(state, given)


def introduce(
    transactions: Transactions, transactional_id: str, timeout_ms: int, scope: str, step: TransactionStep
) -> IdentityRecord | Refusal:
    """A transactional id that is not known gets an identity: a new producer id, and epoch 0."""
    if transactional_id not in transactions and len(transactions) >= step.config.max_ids_of_a_partition:
        return too_many_ids(transactional_id, step.config)
    producer_id = transactions.next_producer_id()
    if producer_id is None:
        return no_producer_id()
    if transactional_id not in transactions:
        transactions.add(transactional_id)
    record = unknown_id(transactional_id)._replace(
        producer_id=producer_id, epoch=0, timeout_ms=timeout_ms, scope=scope, changed_wall_ms=step.now.wall_ms
    )
    step.effects.records.append(record)
    return record


def _take_over(
    transactions: Transactions,
    state: TransactionalId,
    how: Ended,
    request: InitProducerIdRequest,
    step: TransactionStep,
) -> Outcome:
    """The epoch ends, and with it the transaction if one is open: a producer begins anew.

    A FENCED epoch is told to no producer but the next, so one step of the epoch is enough to fence the producer before.
    """
    changes: dict[str, Any] = {"timeout_ms": request.transaction_timeout_ms}
    if state.open_members:
        if not state.is_decidable:
            return Waits(state)
        record = ending.decide(transactions, state, how, step, **changes)
    else:
        record = ending.succeed(transactions, state, how, step, **changes)
    if record is None:
        return no_producer_id()
    return _answer(record, NO_OUTCOME)


def _answer(record: IdentityRecord, outcome: int) -> InitProducerIdResponse:
    return InitProducerIdResponse(
        ErrorCode.NONE,
        record.producer_id,
        record.epoch,
        previous_outcome=outcome,
        committed_version=record.committed_version,
    )
