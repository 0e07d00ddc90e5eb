"""Until when a member may take its share for its own."""

from __future__ import annotations

import asyncio
from typing import Any, cast

import pytest

from client.group import Membership, MembershipSettings, Session

SETTINGS = MembershipSettings(
    group_id="g", bootstrap_servers="x:1", client_id="c", protocol_type="consumer", session_timeout_ms=10_000,
    rebalance_timeout_ms=30_000,
)  # fmt: skip


def session(generation: int = 1, *, keeps: bool = False, joined_s: float = 0.0) -> Session:
    made = Session(f"m-{generation}", generation, False, "", keeps=keeps)
    made.confirmed(joined_s, SETTINGS)
    return made


def test_a_share_is_held_until_the_session_is_over() -> None:
    made = session()
    assert made.holds(9.9)
    assert not made.holds(10.0)
    made.renewed(9.0, SETTINGS)
    assert made.holds(18.9)


def test_heartbeats_do_not_make_up_for_a_join_that_does_not_come() -> None:
    made = session(keeps=True)
    for at_s in (9.0, 18.0, 27.0, 36.0):
        made.renewed(at_s, SETTINGS)  # the coordinator knows the member, and waits for it
    assert made.holds(29.9)
    assert not made.holds(30.0)
    made.confirmed(28.0, SETTINGS)  # it waited no longer
    assert made.holds(45.0)


@pytest.mark.parametrize("keeps", [True, False])
def test_a_call_to_join_ends_what_is_held_unless_it_is_kept(keeps: bool) -> None:
    made = session(keeps=keeps)
    made.called = True
    assert made.holds(1.0) is keeps


def test_a_share_is_held_on_in_the_generation_joined_next() -> None:
    first, second = session(keeps=True), session(2, keeps=True, joined_s=8.0)
    first.called = True
    first.successor = second
    assert first.latest is second
    assert first.holds(17.9)
    assert not first.holds(18.0)
    second.ended = "the coordinator dropped it"
    assert not first.holds(9.0)


def test_what_has_ended_is_not_held_whatever_comes_later() -> None:
    made = session(keeps=True)
    made.ended = "expired"
    made.confirmed(5.0, SETTINGS)
    made.successor = session(2, keeps=True)
    assert not made.holds(5.0)


class Clock:
    """The background's clock, which goes on by ``step_s`` whenever it is read."""

    def __init__(self, now_s: float, step_s: float) -> None:
        self.now_s = now_s
        self._step_s = step_s

    def time(self) -> float:
        self.now_s += self._step_s
        return self.now_s


async def test_a_place_that_is_over_by_the_clock_is_asked_about_until_a_heartbeat_tells() -> None:
    """Whenever its time ends: also while the member looks whether it has."""
    for begins_s in range(90, 101):
        clock = Clock(begins_s / 10, 0.1)
        membership = Membership(
            SETTINGS, cast("Any", None), cast("Any", None), on_news=lambda: None, background=cast("Any", clock)
        )
        membership.session = made = session()
        certain = asyncio.create_task(membership.certain())
        await asyncio.sleep(0)
        made.renewed(clock.now_s, SETTINGS)
        async with asyncio.timeout(30):
            assert await certain, f"read at {clock.now_s} s"
