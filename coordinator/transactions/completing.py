"""From the decision to the last end marker: which markers are ordered, what becomes of them, and when all are written."""

from __future__ import annotations

from itertools import islice
from typing import Any, Final

from coordinator.transactions.config import TransactionStep
from coordinator.transactions.orders import MarkerOutcome, TransactionName, WriteMarkers
from coordinator.transactions.records import Completing, IdentityRecord, MemberTombstone
from coordinator.transactions.transaction import (
    COMPLETIONS_TIMER,
    NO_MEMBERS,
    TIMEOUT,
    Marker,
    TransactionalId,
    Transactions,
)

_COMPLETIONS_PER_STEP: Final = 64
"""Completions that are written at once, with the records of another decision or when their timer fires."""


def order_markers(state: TransactionalId, completing: Completing, step: TransactionStep) -> None:
    """The transaction is decided: its markers leave for all partitions once that is on disk."""
    writers = state.transactions.get(completing.identity, NO_MEMBERS).writers
    state.markers = {(place.topic_id, place.partition): Marker(place) for place in writers}
    if writers:
        step.effects.order(
            WriteMarkers(state.transactional_id, *completing.identity, dict(completing.verdicts), writers)
        )


def marked(
    transactions: Transactions,
    name: TransactionName,
    topic_id: str,
    partition: int,
    outcome: MarkerOutcome,
    reason: str,
    step: TransactionStep,
) -> TransactionalId | None:
    """What became of the marker of one partition. Returns the id when that may let parked requests go on."""
    state = transactions.get(name.transactional_id)
    completing = None if state is None else state.identity.completing
    if state is None or completing is None or completing.identity != (name.producer_id, name.producer_epoch):
        return None  # complete already: markers may be written twice
    marker = state.markers.get((topic_id, partition))
    if marker is None:
        return None
    if outcome is MarkerOutcome.REFUSED:
        marker.taken, marker.reason = False, reason
        return None
    marker.taken = True
    if outcome is not MarkerOutcome.TAKEN:
        del state.markers[topic_id, partition]
        if not state.markers:
            finish(transactions, state, step)
    return state


def finish(transactions: Transactions, state: TransactionalId, step: TransactionStep) -> None:
    """All markers are written: the next transaction may be decided. The record of it is written later, with others."""
    if not transactions.finished:
        step.effects.timers[COMPLETIONS_TIMER] = step.now.ms + step.config.completion_delay_ms
    transactions.finished[state.transactional_id] = None
    if state.overdue:
        step.effects.timers[TIMEOUT, state.transactional_id] = step.now.ms


def write_finished(transactions: Transactions, step: TransactionStep) -> None:
    """Writes which transactions are complete, some of them; the timer brings the others."""
    for transactional_id in tuple(islice(transactions.finished, _COMPLETIONS_PER_STEP)):
        write_identity(transactions, transactions[transactional_id], step)
    if transactions.finished:
        step.effects.timers[COMPLETIONS_TIMER] = step.now.ms


def write_identity(
    transactions: Transactions, state: TransactionalId, step: TransactionStep, **changes: Any
) -> IdentityRecord:
    """Writes the identity with ``changes``. When all markers of a decided transaction are written it says so as well, and
    the members of that transaction leave the log."""
    completed = state.identity.completing if state.is_finished else None
    if completed is not None:
        changes.setdefault("completing", None)
    record = state.identity._replace(changed_wall_ms=step.now.wall_ms, **changes)
    step.effects.records.append(record)
    if transactions.finished.pop(state.transactional_id, 0) is None and not transactions.finished:
        step.effects.timers[COMPLETIONS_TIMER] = None
    if completed is not None:
        name = completed.identity
        step.effects.records += [
            MemberTombstone(state.transactional_id, name, member) for member in state.transactions.get(name, ())
        ]
    return record
