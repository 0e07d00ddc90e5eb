"""Requests that wait for end markers: parked, asked again when markers are written, and answered after a bound.

What has to wait is the decision about a transaction behind the markers of the one before, what needs such a decision, and a
partition behind its own marker. Producers are answered by and by and never have to ask again and again.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from coordinator.runtime.effects import Slices
from coordinator.transactions.config import TransactionStep
from coordinator.transactions.refusals import concurrent, error_response
from coordinator.transactions.transaction import PARKED, MarkerKey, TransactionalId, Transactions, Waits
from protocol.errors import ErrorCode
from protocol.messages import Request

Decide = Callable[[Request, TransactionStep], Waits | None]
"""Decides a request, and returns None; or what it has to wait for."""

ASKED_PER_SLICE: Final = 64
"""Requests that are decided again in one slice."""


def ask_again(
    transactions: Transactions, state: TransactionalId, marker: MarkerKey, decide: Decide, step: TransactionStep
) -> Slices:
    """Decides what waits for this marker, or all that is parked if it was the last one, in the order it came; what still has
    to wait stays.

    A decision sees what the one before it wrote: so each that writes is a slice of its own.
    """
    tokens = tuple(state.behind.get(marker, ()) if state.markers else state.parked)
    for number, token in enumerate(tokens, 1):
        parked = state.parked.get(token)
        if parked is None:
            continue
        step.context = parked.context
        waits = decide(parked.request, step)
        if waits is not None:
            transactions.park_again(waits, token)
        else:
            transactions.unpark(state, token, step)
        if step.effects.records or number % ASKED_PER_SLICE == 0:
            step.effects = yield


def on_timer(transactions: Transactions, state: TransactionalId, step: TransactionStep) -> None:
    """Answers what has waited for ``max_wait_ms``; the timer comes again for the others."""
    fault = concurrent(state)
    for token, parked in tuple(state.parked.items()):
        if parked.deadline_ms > step.now.ms:
            step.effects.timers[PARKED, state.transactional_id] = parked.deadline_ms
            return
        transactions.unpark(state, token, step)
        step.effects.reply(token, error_response(parked.request, *fault))


def refuse_all(transactions: Transactions, state: TransactionalId, step: TransactionStep) -> None:
    """The partition is served here no longer."""
    for token, parked in tuple(state.parked.items()):
        transactions.unpark(state, token, step)
        message = "the transactional id has moved; find its coordinator again"
        step.effects.reply(token, error_response(parked.request, ErrorCode.NOT_COORDINATOR, message))
