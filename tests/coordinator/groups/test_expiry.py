"""Which offsets expire, when, and when their group goes with them (KIP-211)."""

from __future__ import annotations

import pytest

from coordinator.groups.expiry import EXPIRY_TIMER
from coordinator.runtime.effects import Instant
from protocol.errors import ErrorCode
from tests.coordinator.groups.keeper import Keeper
from tests.coordinator.groups.steps import step_of

RETENTION_MS = 10_000


def test_offsets_of_a_group_that_was_empty_from_the_start_expire_by_their_commit() -> None:
    keeper = Keeper(RETENTION_MS)
    keeper.commit("g", ("t", 0, 5))
    keeper.pass_ms(4_000)
    keeper.commit("g", ("t", 1, 6))
    keeper.pass_ms(5_999)
    assert keeper.fetch("g") == {("t", 0): 5, ("t", 1): 6}
    keeper.pass_ms(1)
    assert keeper.fetch("g") == {("t", 1): 6}, "exactly at its retention an offset is gone"
    keeper.pass_ms(4_000)
    assert keeper.fetch("g") == {}
    assert keeper.state("g") == "Dead"
    assert keeper.core.groups == {}
    assert keeper.live_keys() == set()


def test_offsets_of_a_group_that_became_empty_live_on_from_then() -> None:
    keeper = Keeper(RETENTION_MS)
    (member,) = keeper.consumers("g", ["t"])
    assert keeper.commit("g", ("t", 0, 5), member=member, generation=1) == [ErrorCode.NONE]
    keeper.pass_ms(30_000)
    keeper.leave("g", member)
    keeper.pass_ms(9_999)
    assert keeper.fetch("g") == {("t", 0): 5}
    keeper.pass_ms(1)
    assert keeper.fetch("g") == {}
    assert keeper.live_keys() == set(), "offsets, group and generation"
    assert ("offsets_expired", {"group": "g", "offsets": 1, "group_is_gone": True}) in keeper.notes


def test_when_a_group_became_empty_is_known_after_a_restart() -> None:
    keeper = Keeper(RETENTION_MS)
    (member,) = keeper.consumers("g", ["t"])
    keeper.commit("g", ("t", 0, 5), member=member, generation=1)
    keeper.pass_ms(30_000)
    keeper.leave("g", member)
    keeper.pass_ms(8_000)
    keeper.restart()
    keeper.pass_ms(1_999)
    assert keeper.fetch("g") == {("t", 0): 5}
    keeper.pass_ms(1)
    assert keeper.core.groups == {}


def test_a_commit_to_an_empty_group_lives_for_a_whole_retention() -> None:
    """Kafka counts from the moment the group became empty; what an administrator sets shortly before the end goes too."""
    keeper = Keeper(RETENTION_MS)
    (member,) = keeper.consumers("g", ["t"])
    keeper.commit("g", ("t", 0, 5), member=member, generation=1)
    keeper.leave("g", member)
    keeper.pass_ms(9_000)
    keeper.commit("g", ("t", 1, 7))
    keeper.pass_ms(1_000)
    assert keeper.fetch("g") == {("t", 1): 7}
    keeper.pass_ms(9_000)
    assert keeper.fetch("g") == {}


def test_a_stable_group_keeps_what_some_member_subscribes_to() -> None:
    keeper = Keeper(RETENTION_MS)
    first, _ = keeper.consumers("g", ["t", "u"], ["u", "v"])
    for topic in ("t", "u", "v", "w"):
        keeper.commit("g", (topic, 0, 5), member=first, generation=keeper.core.groups["g"].generation)
    keeper.pass_ms(9_999)
    assert set(keeper.fetch("g")) == {("t", 0), ("u", 0), ("v", 0), ("w", 0)}
    keeper.pass_ms(1)
    assert set(keeper.fetch("g")) == {("t", 0), ("u", 0), ("v", 0)}
    keeper.pass_ms(100_000)
    assert set(keeper.fetch("g")) == {("t", 0), ("u", 0), ("v", 0)}
    assert keeper.state("g") == "Stable"


@pytest.mark.parametrize(
    ("kind", "blobs"),
    [("consumer", (b"\xc1", ["t"])), ("consumer", (["t"], b"")), ("work", (["t"],))],
)
def test_where_subscriptions_are_not_known_nothing_expires(kind: str, blobs: tuple[list[str] | bytes, ...]) -> None:
    keeper = Keeper(RETENTION_MS)
    members = keeper.consumers("g", *blobs, kind=kind)
    keeper.commit("g", ("w", 0, 5), member=members[0], generation=keeper.core.groups["g"].generation)
    keeper.pass_ms(100_000)
    assert keeper.fetch("g") == {("w", 0): 5}


def test_nothing_expires_while_a_group_rebalances() -> None:
    keeper = Keeper(RETENTION_MS)
    (member,) = keeper.consumers("g", ["t"])
    keeper.commit("g", ("w", 0, 5), member=member, generation=1)
    keeper.join("g", b"")
    assert keeper.state("g") == "PreparingRebalance"
    keeper.pass_ms(100_000)
    assert keeper.fetch("g") == {("w", 0): 5}
    assert keeper.settle("g") == 2


def test_a_subscription_that_changes_counts_from_the_next_generation() -> None:
    keeper = Keeper(RETENTION_MS)
    (member,) = keeper.consumers("g", ["t"])
    keeper.commit("g", ("t", 0, 5), ("u", 0, 6), member=member, generation=1)
    keeper.pass_ms(9_000)
    keeper.consumers("g", ["u"])
    keeper.leave("g", member)
    keeper.settle("g")
    keeper.pass_ms(2_000)
    assert keeper.fetch("g") == {("u", 0): 6}


def test_a_group_without_offsets_goes_at_the_next_look() -> None:
    keeper = Keeper(RETENTION_MS)
    (member,) = keeper.consumers("g", ["t"])
    keeper.pass_ms(50_000)
    keeper.leave("g", member)
    assert keeper.state("g") == "Empty"
    keeper.pass_ms(1_000)
    assert keeper.state("g") == "Dead"
    assert keeper.live_keys() == set()
    keeper.restart()
    assert keeper.core.groups == {}


def test_a_group_whose_first_generation_never_settled_goes_too() -> None:
    keeper = Keeper(RETENTION_MS)
    keeper.join("g", b"")
    keeper.commit("other", ("t", 0, 1))
    keeper.restart()
    assert keeper.state("g") == "Empty"
    keeper.pass_ms(1_000)
    assert list(keeper.core.groups) == ["other"]


def test_a_member_that_is_about_to_join_keeps_its_group() -> None:
    keeper = Keeper(RETENTION_MS)
    (member,) = keeper.consumers("g", ["t"])
    keeper.leave("g", member)
    keeper.ask_to_join("g", b"", session_ms=30_000)
    keeper.pass_ms(29_000)
    assert keeper.state("g") == "Empty"
    assert keeper.core.groups["g"].handed_out, "its generation is not forgotten"
    keeper.pass_ms(3_000)
    assert keeper.state("g") == "Dead"


def test_a_simple_group_with_a_pending_member_outlives_its_offsets() -> None:
    keeper = Keeper(RETENTION_MS)
    keeper.commit("g", ("t", 0, 1))
    _, request = keeper.ask_to_join("g", b"")
    keeper.pass_ms(20_000)
    assert keeper.fetch("g") == {}
    keeper.ask(request)
    assert keeper.settle("g") == 1


def test_a_group_that_is_made_again_begins_anew_and_knows_its_old_members_apart() -> None:
    keeper = Keeper(RETENTION_MS)
    (old,) = keeper.consumers("g", ["t"])
    keeper.leave("g", old)
    keeper.pass_ms(1_000)
    assert keeper.commit("g", ("t", 0, 1), member=old, generation=1) == [ErrorCode.ILLEGAL_GENERATION]
    (new,) = keeper.consumers("g", ["t"])
    assert keeper.core.groups["g"].generation == 1
    assert keeper.commit("g", ("t", 0, 1), member=old, generation=1) == [ErrorCode.UNKNOWN_MEMBER_ID]
    assert keeper.commit("g", ("t", 0, 1), member=new, generation=1) == [ErrorCode.NONE]


def test_a_clock_that_leaps_ahead_is_believed_at_the_second_look() -> None:
    keeper = Keeper(RETENTION_MS)
    keeper.commit("g", ("t", 0, 5))
    keeper.step_wall(3_600_000)
    keeper.pass_ms(1_000)
    assert keeper.fetch("g") == {("t", 0): 5}
    event, told = keeper.notes[-1]
    assert (event, told["ms"]) == ("offset_expiry_deferred", 1_000)
    assert told["wall_clock_gained_ms"] == 3_600_000
    keeper.pass_ms(1_000)
    assert keeper.fetch("g") == {}


def test_a_clock_that_leaps_ahead_and_is_set_right_costs_nothing() -> None:
    keeper = Keeper(RETENTION_MS)
    keeper.commit("g", ("t", 0, 5))
    keeper.step_wall(3_600_000)
    keeper.pass_ms(1_500)
    keeper.step_wall(-3_600_000)
    keeper.pass_ms(8_400)
    assert keeper.fetch("g") == {("t", 0): 5}
    keeper.pass_ms(200)
    assert keeper.fetch("g") == {}


def test_a_clock_that_is_set_back_makes_offsets_live_longer() -> None:
    keeper = Keeper(RETENTION_MS)
    keeper.commit("g", ("t", 0, 5))
    keeper.step_wall(-5_000)
    keeper.pass_ms(14_000)
    assert keeper.fetch("g") == {("t", 0): 5}
    keeper.pass_ms(1_000)
    assert keeper.fetch("g") == {}


def test_a_pass_is_cut_into_slices_and_misses_nothing() -> None:
    keeper = Keeper(RETENTION_MS)
    for number in range(2_000):
        keeper.commit(f"old-{number}", ("t", 0, 1), ("t", 1, 2), ("u", 0, 3))
    keeper.pass_ms(9_000)
    for number in range(2_000):
        keeper.commit(f"new-{number}", ("t", 0, 1))
    keeper.slices = 0
    keeper.pass_ms(1_000 + 990)
    assert 10 < keeper.slices < 100
    assert keeper.largest_slice < 1_000, "records of one slice"
    assert len(keeper.core.groups) == 2_000
    assert all(group_id.startswith("new-") for group_id in keeper.core.groups)
    keeper.restart()
    assert len(keeper.core.groups) == 2_000


def test_subscriptions_of_many_members_are_read_in_slices() -> None:
    keeper = Keeper(RETENTION_MS, min_session_timeout_ms=1)
    members = keeper.consumers("g", *([f"t{number % 7}"] for number in range(3_000)))
    generation = keeper.core.groups["g"].generation
    keeper.commit("g", *((f"t{number}", 0, 1) for number in range(9)), member=members[0], generation=generation)
    keeper.slices = 0
    keeper.pass_ms(10_900)
    assert keeper.slices > 11, "more than one slice a pass"
    assert sorted(keeper.fetch("g")) == [(f"t{number}", 0) for number in range(7)]


def test_what_happens_between_two_slices_counts() -> None:
    """A group that is deleted, or comes to life, in the middle of a pass is judged by what it is then."""
    keeper = Keeper(RETENTION_MS, interval_ms=10_000)
    for number in range(1_000):
        keeper.commit(f"g{number}", ("t", 0, 1))
    keeper.pass_ms(10_000)
    assert keeper.passing()
    left = list(keeper.core.groups)
    assert 0 < len(left) < 1_000
    assert keeper.delete(left[-1]).results[0].error_code == ErrorCode.NONE
    keeper.commit(left[-1], ("t", 2, 9))
    keeper.consumers(left[-2], ["t"])
    keeper.commit(left[-3], ("t", 0, 2))
    keeper.pass_ms(1_000)
    assert not keeper.passing()
    assert keeper.fetch(left[-1]) == {("t", 2): 9}
    assert keeper.fetch(left[-2]) == {("t", 0): 1}
    assert keeper.fetch(left[-3]) == {("t", 0): 2}
    assert set(keeper.core.groups) == set(left[-3:])


def test_the_timer_comes_back_and_one_that_moved_or_is_void_does_nothing() -> None:
    keeper = Keeper(RETENTION_MS)
    assert keeper.timers == {EXPIRY_TIMER: 1_000}
    effects = keeper.core.on_timer(EXPIRY_TIMER, step_of(keeper.core, Instant(999, keeper.now.wall_ms)))
    assert effects.timers == {EXPIRY_TIMER: 1_000}
    keeper.pass_ms(1_000)
    assert keeper.timers == {EXPIRY_TIMER: 2_000}
    keeper.carry_out(keeper.core.unload(step_of(keeper.core, keeper.now)))
    assert keeper.timers == {}
    effects = keeper.core.on_timer(EXPIRY_TIMER, step_of(keeper.core, Instant(5_000, keeper.now.wall_ms)))
    assert (effects.timers, effects.records) == ({}, [])
