"""Requests that wait for end markers: parked, asked again when markers are written, and answered after a bound.

What has to wait is the decision about a transaction behind the markers of the one before, what needs such a decision, and a
partition behind its own marker. Producers are answered by and by and never have to ask again and again.
"""

from __future__ import annotations

from collections.abc import Callable

from coordinator.runtime.effects import Slices
from coordinator.transactions.config import TransactionStep
from coordinator.transactions.refusals import concurrent, error_response
from coordinator.transactions.transaction import PARKED, TransactionalId, Transactions
from protocol.errors import ErrorCode
from protocol.messages import Request

Decide = Callable[[Request, TransactionStep], TransactionalId | None]
"""Decides a request, and returns None; or the id whose markers it has to wait for."""


def ask_again(transactions: Transactions, state: TransactionalId, decide: Decide, step: TransactionStep) -> Slices:
    """Decides what is parked, in the order it came; what still has to wait stays.

    A decision sees what the one before it wrote: so each that writes is a slice of its own.
    """
    for token in tuple(state.parked):
        parked = state.parked.get(token)
        if parked is None:
            continue
        step.context = parked.context
        if decide(parked.request, step) is None:
            transactions.unpark(state, token, step)
            if step.effects.records:
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
