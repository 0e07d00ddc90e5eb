"""How transactions end: EndTxn, the transaction timeout, an administrator. The decision is one record.

Each end is followed by another epoch. A Kafka producer from before KIP-890 does not learn it: when its own EndTxn ended the
transaction, the record says which identity it keeps, and what names that is about the transaction that is current then. All
other ends are also the end of that: the producer is told that it is fenced.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import Any, Final

from coordinator.transactions import carrying
from coordinator.transactions.completing import order_markers, write_identity
from coordinator.transactions.config import TransactionStep
from coordinator.transactions.records import (
    NO_PRODUCER,
    Completing,
    Ended,
    Identity,
    IdentityRecord,
    MemberTombstone,
    Previous,
)
from coordinator.transactions.refusals import (
    Outcome,
    Refusal,
    length_fault,
    no_member,
    no_producer_id,
    no_such_id,
    not_current,
    not_found,
    nothing_to_commit,
    other_verdict,
    other_version,
    scope_fault,
)
from coordinator.transactions.transaction import TIMEOUT, TransactionalId, Transactions, Waits, stop_timeout
from protocol.errors import ErrorCode
from protocol.messages.transactions import (
    NO_VERSION,
    AbortTransactionRequest,
    AbortTransactionResponse,
    EndTxnRequest,
    EndTxnResponse,
)

_RETRY_MS: Final = 1_000
"""A timeout that finds no producer id at hand comes again after this."""

_ABORTS: Final = (Ended.ABORTED, Ended.TIMED_OUT, Ended.ADMIN)
"""After these an abort is a repetition, or makes no difference."""


def end(transactions: Transactions, request: EndTxnRequest, step: TransactionStep) -> Outcome:
    """Decides an EndTxn."""
    state = transactions.known(request.transactional_id)
    if state is None:
        return no_such_id(request.transactional_id)
    named = state.meant(Identity(request.producer_id, request.producer_epoch), request.keeps_epoch)
    if request.version > NO_VERSION:
        fault = scope_fault(state, request.scope, step.config)
        fault = fault or length_fault("metadata of the version", request.metadata, step.config)
        if fault is not None:
            return fault
        if request.version <= state.identity.committed_version:
            return _answer(state.identity, may_go_on=_may_go_on(state, named))
    if named == state.identity.identity:
        return _end_current(transactions, state, request, step)
    previous = state.identity.previous
    if previous is None or named != previous.identity or previous.how in (Ended.FENCED, Ended.RENEWED):
        return not_current(state, named)
    if request.keeps_epoch:  # it was ended behind its back, and it would not hear of another epoch
        return not_current(state, named)
    if previous.how in _ABORTS if not request.committed else previous.how is Ended.COMMITTED:
        return _answer(state.identity)
    if previous.how in (Ended.TIMED_OUT, Ended.ADMIN):
        return not_current(state, named)
    return other_verdict(state, previous)


def abort(transactions: Transactions, request: AbortTransactionRequest, step: TransactionStep) -> Outcome:
    """Decides an AbortTransaction of an administrator."""
    state = transactions.known(request.transactional_id)
    if state is None:
        return not_found(request.transactional_id)
    how = Ended.FENCED if request.fence else Ended.ADMIN
    record: IdentityRecord | None
    is_open = bool(state.open_members)
    if is_open:
        if not state.is_decidable:
            return Waits(state)
        record = decide(transactions, state, how, step)
    else:
        record = succeed(transactions, state, how, step) if request.fence else state.identity
    if record is None:
        return no_producer_id()
    return AbortTransactionResponse(ErrorCode.NONE, aborted=is_open)


def on_timeout(transactions: Transactions, state: TransactionalId, step: TransactionStep) -> None:
    """The timer fired: the transaction is aborted, or as soon as the markers of the one before are written.

    One that is carried and not written to is no transaction yet: what is carried is given up, and its producer goes on.
    """
    if state.deadline_ms is None:
        return
    if step.now.ms < state.deadline_ms:
        step.effects.timers[TIMEOUT, state.transactional_id] = state.deadline_ms
    elif state.carried:
        carrying.give_up(state, step)
    elif not state.is_decidable:
        state.overdue = True
    elif decide(transactions, state, Ended.TIMED_OUT, step) is None:
        step.effects.timers[TIMEOUT, state.transactional_id] = step.now.ms + _RETRY_MS


def decide(
    transactions: Transactions,
    state: TransactionalId,
    how: Ended,
    step: TransactionStep,
    winners: Collection[int] | None = None,
    **changes: Any,
) -> IdentityRecord | None:
    """Decides the open transaction, of which the one before has all its markers. ``winners`` are those whose records are
    committed, None for all. Returns the identity that follows; None, and nothing is decided, without a producer id for it.

    The markers leave when the record is on disk.
    """
    assert state.is_decidable, f"{state.transactional_id} waits for {state.in_the_way()}"
    members, name = state.open_members, state.identity.identity
    commits = how is Ended.COMMITTED
    verdicts = tuple((member, commits and (winners is None or member in winners)) for member in members)
    completing = Completing(*name, verdicts) if any(member.topics for member in members.values()) else None
    record = succeed(transactions, state, how, step, completing=completing, **changes)
    if record is None:
        return None
    transactions.ended[how] += 1
    stop_timeout(state, step)
    if how in (Ended.TIMED_OUT, Ended.ADMIN, Ended.FENCED):
        step.effects.note(
            "transaction_aborted",
            transactional_id=state.shown,
            producer_id=name.producer_id,
            producer_epoch=name.epoch,
            cause=how.name.lower(),
        )
    if completing is not None:
        order_markers(state, completing, step)
        if winners is None and how in (Ended.COMMITTED, Ended.ABORTED) and record.kept is None:
            carrying.carry(state, record, step)
    else:
        step.effects.records += [MemberTombstone(state.transactional_id, name, member) for member in members]
    state.touched.clear()
    return record


def succeed(
    transactions: Transactions, state: TransactionalId, how: Ended, step: TransactionStep, **changes: Any
) -> IdentityRecord | None:
    """Ends the current epoch: writes the identity that follows, with ``changes``.

    Returns None, and writes nothing, when that takes a new producer id and there is none.
    """
    current = state.identity
    following = Identity(current.producer_id, current.epoch + 1)
    if following.epoch > step.config.last_epoch:
        producer_id = transactions.next_producer_id()
        if producer_id is None:
            return None
        following = Identity(producer_id, 0)
    carrying.give_up(state, step)
    previous = Previous(*(current.kept or current.identity), how)  # as its producer names it
    changes = {"previous": previous, "kept": None, **changes}
    return write_identity(
        transactions, state, step, producer_id=following.producer_id, epoch=following.epoch, **changes
    )


def _end_current(
    transactions: Transactions, state: TransactionalId, request: EndTxnRequest, step: TransactionStep
) -> Outcome:
    members = state.open_members
    if request.keeps_epoch and not members:
        return _end_nothing(state, request)
    how = Ended.COMMITTED if request.committed else Ended.ABORTED
    fault = _commit_fault(state, request) if request.committed else None
    if fault is not None:
        return fault
    changes: dict[str, Any] = {}
    if request.committed and request.version > NO_VERSION:
        changes = {
            "committed_version": request.version,
            "scope": request.scope,
            "committed_metadata": request.metadata,
        }
    if request.keeps_epoch:
        changes["kept"] = Identity(request.producer_id, request.producer_epoch)
    if not members:
        record = succeed(transactions, state, how, step, **changes)
    elif state.is_decidable:
        winners = None if state.open_version == NO_VERSION else frozenset(request.members)
        record = decide(transactions, state, how, step, winners, **changes)
    else:
        return Waits(state)
    if record is None:
        return no_producer_id()
    return _answer(record)


def _end_nothing(state: TransactionalId, request: EndTxnRequest) -> Outcome:
    """A producer that keeps its epoch ends what is not open: it repeats itself, or has added no partition."""
    previous = state.identity.previous
    how = None
    if previous is not None and previous.identity == (request.producer_id, request.producer_epoch):
        how = previous.how
    if previous is not None and how is not None and (how is Ended.COMMITTED) != request.committed:
        return other_verdict(state, previous)
    return nothing_to_commit(state) if request.committed and how is None else _answer(state.identity)


def _commit_fault(state: TransactionalId, request: EndTxnRequest) -> Refusal | None:
    """Why the current transaction cannot be committed as the request says."""
    members = state.open_members
    if not members and request.version == NO_VERSION:
        return nothing_to_commit(state)
    if state.open_version not in (NO_VERSION, request.version):
        return other_version(state, request.version)
    strangers = [member for member in request.members if member not in members]
    return no_member(state, strangers) if strangers else None


def _may_go_on(state: TransactionalId, named: Identity) -> bool:
    """Whether a producer that was told of a transaction as ``named`` may go on with the current identity."""
    previous = state.identity.previous
    if named == state.identity.identity:
        return True
    return previous is not None and named == previous.identity and previous.how is not Ended.FENCED


def _answer(record: IdentityRecord, may_go_on: bool = True) -> EndTxnResponse:
    """It is decided. A producer that has been fenced is not told the identity of the next."""
    identity = record.identity if may_go_on else Identity(NO_PRODUCER, -1)
    return EndTxnResponse(
        ErrorCode.NONE,
        *identity,
        committed_version=record.committed_version,
        committed_metadata=record.committed_metadata,
    )
