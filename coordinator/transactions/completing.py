"""From the decision to the last end marker: which markers are ordered, what becomes of them, and when all are written."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import chain, islice
from typing import Any, Final

from coordinator.transactions.config import TransactionStep
from coordinator.transactions.orders import MarkerEnd, MarkerOutcome, MarkerPartition, TransactionName, WriteMarkers
from coordinator.transactions.records import Completing, IdentityRecord, MemberTombstone
from coordinator.transactions.transaction import (
    COMPLETIONS_TIMER,
    TIMEOUT,
    Marker,
    Members,
    TransactionalId,
    Transactions,
)
from protocol.messages.transactions import TransactionTopic

_COMPLETIONS_PER_STEP: Final = 64
"""Completions that are written at once, with the records of another decision or when their timer fires."""


def order_markers(state: TransactionalId, completing: Completing, step: TransactionStep) -> None:
    """The transaction is decided: its markers leave for all partitions once that is on disk."""
    members = state.transactions.get(completing.identity, {})
    verdicts = dict(completing.verdicts)
    # Each once: ten thousand members that each wrote to some partitions have a thousand writers in each.
    ends = {member: MarkerEnd(member, completing.epoch, verdicts.get(member, False)) for member in members}
    state.markers = {}
    orders: dict[tuple[int, ...], list[MarkerPartition]] = {}
    for partition, writers in _writers(members):
        state.markers[partition.topic_id, partition.partition] = Marker(partition)
        orders.setdefault(writers, []).append(partition)
    for writers, partitions in orders.items():
        ended = tuple([ends[member] for member in writers])
        order = WriteMarkers(state.transactional_id, completing.producer_id, completing.epoch, ended, tuple(partitions))
        step.effects.order(order)


def _writers(members: Members) -> Iterator[tuple[MarkerPartition, tuple[int, ...]]]:
    """Each partition of a transaction, and the members that may have written there.

    Members that wrote to the same partitions, as ten thousand tasks of one job mostly do, are looked at together.
    """
    alike: dict[tuple[TransactionTopic, ...], list[int]] = {}
    for member in members.values():
        alike.setdefault(member.topics, []).append(member.producer_id)
    several: dict[MarkerPartition, list[list[int]]] = {}
    for topics, writers in alike.items():
        for topic in topics:
            for partition in topic.partitions:
                several.setdefault(MarkerPartition(topic.name, topic.topic_id, partition), []).append(writers)
    joined: dict[tuple[int, ...], tuple[int, ...]] = {}
    for place, lists in several.items():
        key = tuple(map(id, lists))
        found = joined.get(key)
        if found is None:
            found = joined[key] = tuple(chain.from_iterable(lists))
        yield place, found


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
