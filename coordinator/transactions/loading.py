"""The soft state of transactions: made when the log has been replayed, given up when the partition is served no longer."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from coordinator.transactions import carrying
from coordinator.transactions.completing import finish, order_markers
from coordinator.transactions.config import TransactionStep
from coordinator.transactions.parking import refuse_all
from coordinator.transactions.records import NOT_STARTED, MemberTombstone
from coordinator.transactions.transaction import (
    COMPLETIONS_TIMER,
    TransactionalId,
    Transactions,
    start_timeout,
    stop_timeout,
)
from protocol.messages.transactions import NO_VERSION

_IDS_PER_STEP: Final = 1_000
"""Ids that come to life in one step of a load: about 2 ms."""


def load(transactions: Transactions, step: TransactionStep) -> Iterator[None]:
    """Erases what a crash left over, orders the markers of all that is decided, and starts the timeouts."""
    for place, state in enumerate(tuple(transactions.values()), 1):
        _erase_left_over(state, step)
        if not state.is_known:
            continue  # the last tombstone takes it away
        completing = state.identity.completing
        if completing is not None:
            order_markers(state, completing, step)
            if state.is_finished:
                finish(transactions, state, step)
        if state.open_members:
            # What is carried may have been written to, so it is open.
            state.open_since_wall_ms = step.now.wall_ms
            start_timeout(state, _left_ms(state, step), step)
            carrying.look(state, step)
        if place % _IDS_PER_STEP == 0:
            yield


def unload(transactions: Transactions, step: TransactionStep) -> None:
    """Answers what is parked, cancels all timers and forgets all ids.

    What is carried is given up: on a clean stop that is written, so that no producer at rest is found to be open.
    """
    for state in transactions.values():
        refuse_all(transactions, state, step)
        carrying.give_up(state, step)
        stop_timeout(state, step)
    if transactions.finished:
        step.effects.timers[COMPLETIONS_TIMER] = None
    transactions.finished.clear()
    transactions.clear()
    assert not transactions.requests, f"tokens {list(transactions.requests)} would never be answered"


def _erase_left_over(state: TransactionalId, step: TransactionStep) -> None:
    """A crash between the record of a completion and the tombstones of its members leaves members of a transaction that is
    neither current nor completing."""
    identity = state.identity
    wanted = {identity.identity, None if identity.completing is None else identity.completing.identity}
    for name, members in state.transactions.items():
        if name not in wanted or not state.is_known:
            step.effects.records += [MemberTombstone(state.transactional_id, name, member) for member in members]


def _left_ms(state: TransactionalId, step: TransactionStep) -> int:
    """How long the open transaction has left: by the wall clock, and the whole timeout if it was joined or carried.

    The signs of life of members are not written, and none could be heard during the load. When one with partitions that were
    carried was begun is not written either.
    """
    timeout_ms = state.identity.timeout_ms
    started_ms = min(member.started_wall_ms for member in state.open_members.values())
    if state.open_version != NO_VERSION or started_ms == NOT_STARTED:
        return timeout_ms
    return max(0, min(timeout_ms, started_ms + timeout_ms - step.now.wall_ms))
