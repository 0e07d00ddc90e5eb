"""Transactional ids expire when they have not been used for ``transactional_id_expiration_ms``, as in Kafka.

Never while a transaction is open or its end markers are being written. The next producer of the id gets a new producer id.
The wall clock decides, as ages go on while the daemon is down; when it has gained more than a check interval on the loop's
clock since the last look, the look is put off, and the next one believes it (the same rule as for committed offsets). A look
goes in slices of bounded work.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import islice
from typing import Final

from coordinator.runtime.effects import Instant, TimerName
from coordinator.transactions.config import TransactionStep
from coordinator.transactions.records import IdentityTombstone
from coordinator.transactions.transaction import TransactionalId, Transactions

EXPIRY_TIMER: Final[TimerName] = ("expiry",)
"""The timer that brings the next slice or the next look."""

SLICE_PAUSE_MS: Final = 10
"""What requests get to themselves between two slices."""

_IDS_PER_SLICE: Final = 2_000
"""Ids that a slice looks at: about 2 ms."""


class Expiry:
    """When the ids of a shard are looked at, and how far the look under way has come. All of it is soft."""

    def __init__(self) -> None:
        self.deadline_ms: int | None = None
        """When the timer is due; None before ``start``, and after ``stop``."""
        self._last_look: Instant | None = None
        self._cutoff_ms = 0
        self._left: Iterator[str] | None = None

    @property
    def under_way(self) -> bool:
        """Whether a look has begun and is not at its end."""
        return self._left is not None

    def start(self, delay_ms: int, step: TransactionStep) -> None:
        """The first look comes after ``delay_ms``."""
        self._last_look = step.now
        self._come_back(delay_ms, step)

    def stop(self, step: TransactionStep) -> None:
        """No look comes any more, and the one under way is given up."""
        self._left = None
        if self.deadline_ms is not None:
            self.deadline_ms = None
            step.effects.timers[EXPIRY_TIMER] = None

    def on_timer(self, transactions: Transactions, step: TransactionStep) -> None:
        """The timer fired: one slice. One that has moved is set again, one that is void does nothing."""
        if self.deadline_ms is None:
            return
        if step.now.ms < self.deadline_ms:
            step.effects.timers[EXPIRY_TIMER] = self.deadline_ms
            return
        interval_ms = step.config.transactional_id_expiration_check_interval_ms
        if self._left is None and not self._clock_slipped(interval_ms, step):
            self._cutoff_ms = step.now.wall_ms - step.config.transactional_id_expiration_ms
            self._left = iter(tuple(transactions))
        if self._left is not None and self._slice(transactions, self._left, step):
            self._come_back(SLICE_PAUSE_MS, step)
        else:
            self._left = None
            self._come_back(interval_ms, step)

    def _slice(self, transactions: Transactions, left: Iterator[str], step: TransactionStep) -> bool:
        """Looks at some ids; whether there are more."""
        some = tuple(islice(left, _IDS_PER_SLICE))
        states = (transactions.known(transactional_id) for transactional_id in some)
        expired = [state for state in states if state is not None and self._has_expired(state)]
        step.effects.records += [IdentityTombstone(state.transactional_id) for state in expired]
        if expired:
            step.effects.note("transactional_ids_expired", ids=len(expired), first=expired[0].shown)
        return len(some) == _IDS_PER_SLICE

    def _has_expired(self, state: TransactionalId) -> bool:
        at_rest = not state.transactions and state.identity.completing is None and not state.parked
        return at_rest and state.identity.changed_wall_ms <= self._cutoff_ms

    def _clock_slipped(self, interval_ms: int, step: TransactionStep) -> bool:
        last, self._last_look = self._last_look, step.now
        assert last is not None, "a timer that is set has been started"
        gained_ms = (step.now.wall_ms - last.wall_ms) - (step.now.ms - last.ms)
        if gained_ms <= interval_ms:
            return False
        # The wall clock went so much further than the time that passed, and may be wrong.
        step.effects.note("transactional_id_expiry_deferred", ms=interval_ms, wall_clock_gained_ms=gained_ms)
        return True

    def _come_back(self, after_ms: int, step: TransactionStep) -> None:
        self.deadline_ms = step.effects.timers[EXPIRY_TIMER] = step.now.ms + after_ms
