"""Named timers: setting one again replaces it, and a renewal costs no new entry."""

from __future__ import annotations

import asyncio

from hypothesis import given, settings
from hypothesis import strategies as st

from coordinator.runtime.timers import READ_MS, STALL_MS, TICK_MS, Timers


class HandDrivenLoop(asyncio.SelectorEventLoop):
    """A real event loop whose clock stands still until a test moves it."""

    def __init__(self) -> None:
        super().__init__()
        self.now_ms = 0

    def time(self) -> float:
        return self.now_ms / 1000

    def advance(self, to_ms: int) -> None:
        self.now_ms = to_ms
        self.call_soon(self.stop)
        self.run_forever()


def run(script: list[tuple[str, int, int]]) -> list[tuple[int, int]]:
    """Plays ("set" name deadline | "cancel" name _ | "advance" _ ms) and returns (time, name) of what fired."""
    loop = HandDrivenLoop()
    fired: list[tuple[int, int]] = []
    timers: Timers[int] = Timers(loop, lambda name: fired.append((loop.now_ms, name)))
    try:
        for action, name, value in script:
            if action == "set":
                timers.set(name, loop.now_ms + value)
            elif action == "cancel":
                timers.cancel(name)
            else:
                loop.advance(loop.now_ms + value)
    finally:
        timers.close()
        loop.close()
    return fired


def test_a_timer_fires_once_its_deadline_is_reached_and_not_before() -> None:
    assert run([("set", 1, 100), ("advance", 0, 99), ("advance", 0, 1), ("advance", 0, 1000)]) == [(100, 1)]


def test_setting_again_replaces_to_later_and_to_earlier() -> None:
    assert run([("set", 1, 100), ("set", 1, 300), ("advance", 0, 200), ("advance", 0, 100)]) == [(300, 1)]
    assert run([("set", 1, 300), ("set", 1, 100), ("advance", 0, 100), ("advance", 0, 500)]) == [(100, 1)]


def test_a_cancelled_timer_stays_silent_and_can_be_set_again() -> None:
    assert run([("set", 1, 100), ("cancel", 1, 0), ("advance", 0, 200)]) == []
    assert run([("set", 1, 100), ("cancel", 1, 0), ("set", 1, 150), ("advance", 0, 150)]) == [(150, 1)]


def test_what_is_due_together_fires_in_order_of_deadlines() -> None:
    assert run([("set", 2, 50), ("set", 1, 60), ("set", 3, 40), ("advance", 0, 100)]) == [(100, 3), (100, 2), (100, 1)]


def test_a_timer_set_while_firing_is_kept() -> None:
    loop = HandDrivenLoop()
    fired: list[int] = []

    def fire(name: int) -> None:
        fired.append(loop.now_ms)
        if len(fired) < 3:
            timers.set(name, loop.now_ms + 10)

    timers: Timers[int] = Timers(loop, fire)
    timers.set(7, 10)
    for now in (10, 20, 30, 40):
        loop.advance(now)
    timers.close()
    loop.close()
    assert fired == [10, 20, 30]


def test_renewing_a_session_a_million_times_keeps_one_entry() -> None:
    loop = HandDrivenLoop()
    timers: Timers[str] = Timers(loop, lambda name: None)
    for deadline in range(10_000, 1_010_000, 100):
        timers.set("session", deadline)
    assert len(timers) == 1
    assert len(timers._heap) == 1
    timers.close()
    loop.close()


def test_a_timer_that_fails_does_not_take_the_others_with_it() -> None:
    loop = HandDrivenLoop()
    fired: list[str] = []

    def fire(name: str) -> None:
        fired.append(name)
        if name == "faulty":
            raise RuntimeError("a fault of ours")

    timers: Timers[str] = Timers(loop, fire)
    for name, deadline in (("faulty", 10), ("with it", 10), ("later", 20)):
        timers.set(name, deadline)
    loop.advance(10)
    loop.advance(20)
    timers.close()
    loop.close()
    assert fired == ["faulty", "with it", "later"]


def test_a_deadline_that_floating_point_cannot_hold_fires_on_time() -> None:
    for deadline in range(1, 5000, 7):
        assert run([("set", 1, deadline), ("advance", 0, deadline)]) == [(deadline, 1)]


def test_cancelled_timers_do_not_pile_up() -> None:
    loop = HandDrivenLoop()
    timers: Timers[int] = Timers(loop, lambda name: None)
    timers.set(-1, 10)
    for name in range(120_000):
        timers.set(name, 1_800_000)
        timers.cancel(name)
    assert len(timers) == 1
    assert len(timers._heap) < 40_000
    timers.close()
    loop.close()


def stalling(loop: HandDrivenLoop, fired: list[tuple[int, str]]) -> Timers[str]:
    """Timers of which those whose names begin with a capital are for others, and are put off by a stall."""
    return Timers(loop, lambda name: fired.append((loop.now_ms, name)), str.istitle)


def test_a_stall_puts_off_what_waits_for_others_by_as_long_as_it_lasted() -> None:
    loop, fired = HandDrivenLoop(), list[tuple[int, str]]()
    timers = stalling(loop, fired)
    timers.set("Session", 3_000)
    timers.set("heartbeat", 1_500)
    for now in range(100, 1_001, 100):
        loop.advance(now)
    loop.advance(5_000)
    assert fired == [(5_000, "heartbeat")], "what members wait for is not put off"
    timers.set("heartbeat", 5_500)
    for now in range(5_100, 12_000, 100):
        loop.advance(now)
    stall_ms = 5_000 - 1_000
    assert fired[1:2] == [(5_500, "heartbeat")]
    ((ended_ms, name),) = fired[2:]
    assert name == "Session"
    assert 3_000 + stall_ms + READ_MS <= ended_ms <= 3_000 + stall_ms + READ_MS + TICK_MS + 100
    timers.close()
    loop.close()


def test_a_loop_that_is_busy_does_not_stall() -> None:
    loop, fired = HandDrivenLoop(), list[tuple[int, str]]()
    timers = stalling(loop, fired)
    timers.set("Session", 3_000)
    for now in range(0, 3_400, STALL_MS + TICK_MS - 50):
        loop.advance(now)
    assert [name for _, name in fired] == ["Session"]
    timers.close()
    loop.close()


def test_a_machine_that_stalls_on_and_on_does_not_put_off_anything_for_ever() -> None:
    loop, fired = HandDrivenLoop(), list[tuple[int, str]]()
    timers = stalling(loop, fired)
    timers.set("Session", 3_000)
    for now in range(0, 60_000, 2_000):
        loop.advance(now)
    ((ended_ms, _),) = fired
    assert ended_ms <= 3_000 + 3 * (2_000 + READ_MS) + 2_000
    timers.close()
    loop.close()


def test_a_session_that_is_renewed_may_be_put_off_anew() -> None:
    loop, fired = HandDrivenLoop(), list[tuple[int, str]]()
    timers = stalling(loop, fired)
    for now in range(0, 60_000, 2_500):
        timers.set("Session", now + 2_000)  # heard of, and then comes a stall
        loop.advance(now + 2_500)
    assert fired == []
    timers.close()
    loop.close()


def test_many_timers_that_are_due_at_once_leave_turns_to_others() -> None:
    loop, fired = HandDrivenLoop(), list[int]()
    timers: Timers[int] = Timers(loop, fired.append)
    for name in range(1_000):
        timers.set(name, 10)
    loop.advance(10)
    assert 0 < len(fired) <= 100
    timers.cancel(500)
    timers.set(600, 10)  # due once more, not twice
    timers.set(700, 5_000)
    while len(fired) < 998:
        loop.advance(11)
    assert sorted(fired) == [name for name in range(1_000) if name not in (500, 700)]
    loop.advance(5_000)
    assert fired[-1] == 700
    assert len(timers) == 0
    timers.close()
    loop.close()


steps = st.lists(
    st.one_of(
        st.tuples(st.just("set"), st.integers(0, 4), st.integers(0, 200)),
        st.tuples(st.just("cancel"), st.integers(0, 4), st.just(0)),
        st.tuples(st.just("advance"), st.just(0), st.integers(0, 100)),
    ),
    max_size=40,
)


@settings(max_examples=150, deadline=None)
@given(steps)
def test_timers_fire_exactly_when_a_plain_model_says(script: list[tuple[str, int, int]]) -> None:
    now = 0
    model: dict[int, int] = {}
    expected: list[tuple[int, int]] = []
    for action, name, value in script:
        if action == "set":
            model[name] = now + value
        elif action == "cancel":
            model.pop(name, None)
        else:
            now += value
            due = sorted(name for name, deadline in model.items() if deadline <= now)
            expected += [(now, name) for name in due]
            model = {name: deadline for name, deadline in model.items() if name not in due}
    assert sorted(run(script)) == sorted(expected)


def test_ten_thousand_deadlines_that_have_moved_are_not_looked_at_in_one_turn() -> None:
    script = [("set", name, 100) for name in range(10_000)]
    script += [("set", name, 60_000) for name in range(10_000)]
    script += [("set", 10_000, 100), ("advance", 0, 100)]
    assert run(script) == [], "it comes behind all the others"
    assert run([*script, *[("advance", 0, 0)] * 30]) == [(100, 10_000)]
