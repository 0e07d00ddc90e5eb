"""The token bucket of replicas that are not in sync."""

from __future__ import annotations

import pytest

from coordinator.replication.throttle import Throttle


def test_without_a_bound_nothing_waits() -> None:
    throttle = Throttle(-1, 0.0)
    throttle.spend(1 << 40, 0.0)
    assert not throttle.is_on
    assert throttle.wait_s(0.0) == 0


def test_a_second_is_there_at_once_and_what_goes_beyond_has_to_be_waited_for() -> None:
    throttle = Throttle(1_000, 5.0)
    throttle.spend(1_000, 5.0)
    assert throttle.wait_s(5.0) == 0
    throttle.spend(2_500, 5.0)
    assert throttle.wait_s(5.0) == pytest.approx(2.5)
    assert throttle.wait_s(7.0) == pytest.approx(0.5)
    assert throttle.wait_s(7.5) == 0


def test_what_was_not_used_is_not_saved_beyond_a_second() -> None:
    throttle = Throttle(1_000, 0.0)
    throttle.spend(3_000, 100.0)
    assert throttle.wait_s(100.0) == pytest.approx(2.0)


def test_the_average_is_the_bound() -> None:
    throttle, now_s, copied = Throttle(1_000, 0.0), 0.0, 0
    while now_s < 60:
        wait_s = throttle.wait_s(now_s)
        if wait_s:
            now_s += max(wait_s, 0.001)
        else:
            throttle.spend(700, now_s)
            copied += 700
    assert copied == pytest.approx(61_000, rel=0.03)
