"""Transactional ids that are not used expire: slice by slice, by a wall clock that may be wrong, and never while in use."""

from __future__ import annotations

import pytest

from coordinator.transactions import expiry
from coordinator.transactions.config import TransactionConfig
from coordinator.transactions.expiry import EXPIRY_TIMER, SLICE_PAUSE_MS
from coordinator.transactions.records import IdentityTombstone
from tests.coordinator.transactions.steps import Coordinator

INTERVAL_MS = 1_000
CONFIG = TransactionConfig(
    transactional_id_expiration_ms=10_000, transactional_id_expiration_check_interval_ms=INTERVAL_MS
)


def started() -> Coordinator:
    there = Coordinator(CONFIG)
    there.carry_out(there.core.start_expiry(there.step(), 100))
    return there


def erased(there: Coordinator) -> list[str]:
    return [record.transactional_id for record in there.written if isinstance(record, IdentityTombstone)]


def test_an_id_expires_when_it_was_not_used_for_long() -> None:
    there = started()
    there.init("old")
    there.advance(5_000)
    there.init("young")
    there.advance(6_000)
    assert erased(there) == ["old"]
    assert list(there.core.transactions) == ["young"]
    assert there.notes == ["transactional_ids_expired"]
    there.advance(5_000)
    assert erased(there) == ["old", "young"]


def test_what_is_used_lives_on() -> None:
    there = started()
    there.init("t")
    epoch = 0
    for _ in range(10):
        there.advance(3_000)
        epoch = there.end(1000, epoch, committed=False).producer_epoch
    assert erased(there) == []


def test_a_look_goes_in_slices(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(expiry, "_IDS_PER_SLICE", 2)
    there = started()
    for number in range(5):
        there.init(f"id-{number}")
    there.advance(10_000)  # the looks come at 100, 1 100, ... and the next finds them all old
    begins_ms = there.timers[EXPIRY_TIMER]
    there.advance(begins_ms - there.now_ms)
    assert len(erased(there)) == 2
    assert there.core.expiry.under_way
    assert there.timers[EXPIRY_TIMER] == begins_ms + SLICE_PAUSE_MS
    there.init("id-4")
    there.advance(2 * SLICE_PAUSE_MS)
    assert erased(there) == ["id-0", "id-1", "id-2", "id-3"], "an id that was used meanwhile stays"
    assert not there.core.expiry.under_way


def test_a_wall_clock_that_leaps_is_believed_at_the_second_look() -> None:
    there = started()
    there.init("t")
    there.advance(100)
    there.wall_ms += 20_000
    there.advance(INTERVAL_MS)
    assert erased(there) == []
    assert there.notes == ["transactional_id_expiry_deferred"]
    there.advance(INTERVAL_MS)
    assert erased(there) == ["t"]


def test_a_wall_clock_that_goes_back_erases_nothing() -> None:
    there = started()
    there.init("t")
    there.wall_ms -= 50_000
    there.advance(20_000)
    assert erased(there) == []


def test_a_timer_that_moved_or_is_void_does_nothing() -> None:
    there = started()
    there.init("t")
    there.carry_out(there.core.on_timer(EXPIRY_TIMER, there.step()))
    assert there.timers[EXPIRY_TIMER] == 100, "it is not due, and set again"
    step = there.step()
    there.core.expiry.stop(step)
    there.carry_out(step.effects)
    there.advance(50_000)
    there.carry_out(there.core.on_timer(EXPIRY_TIMER, there.step()))
    assert erased(there) == []
    assert EXPIRY_TIMER not in there.timers
