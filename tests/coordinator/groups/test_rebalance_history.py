"""What is kept of rebalances: why, who came and went, how long; and that it is bounded."""

from __future__ import annotations

import pytest

from coordinator.groups import rebalance_history
from coordinator.groups.rebalance_history import MAX_REBALANCES, MAX_RECENT, RebalanceHistory
from coordinator.runtime.effects import Instant


def at(ms: int) -> Instant:
    return Instant(ms, 1_700_000_000_000 + ms)


def test_a_rebalance_tells_why_and_who_came_and_went() -> None:
    history = RebalanceHistory()
    history.begin("g", "session_timeout", "member b was not heard of", 2, at(100))
    before, after = {"a": b"", "b": b""}, {"a": object(), "c": object()}
    history.end("g", 8, "member b was not heard of; member c joined", before, after, {"b": "was not heard of"}, at(350))
    (told,) = history.of("g")
    assert (told.kind, told.generation, told.outcome) == ("session_timeout", 8, "assigned")
    assert told.reason == "member b was not heard of; member c joined"
    assert (told.members_before, told.members, told.took_ms) == (2, 2, 250)
    assert (told.joined, told.left) == (("c",), (("b", "was not heard of"),))
    assert list(history.recent) == [told]


def test_one_that_another_takes_the_place_of_has_come_to_nothing() -> None:
    history = RebalanceHistory()
    history.begin("g", "member_joined", "one", 0, at(0))
    history.begin("g", "sync_timeout", "two", 0, at(40))
    history.end("g", 2, "two", {}, {}, {}, at(50))
    assert [(told.outcome, told.took_ms) for told in history.of("g")] == [("restarted", 40), ("emptied", 10)]


def test_its_state_changes_whenever_there_is_something_new() -> None:
    history = RebalanceHistory()
    states = [history.state_of("g")]
    history.begin("g", "member_joined", "one", 0, at(5))
    states.append(history.state_of("g"))
    history.end("g", 1, "one", {}, {"a": 1}, {}, at(6))
    states.append(history.state_of("g"))
    assert len(set(states)) == 3


def test_a_group_that_is_unloaded_leaves_none_that_goes_on() -> None:
    history = RebalanceHistory()
    history.begin("g", "member_joined", "one", 0, at(0))
    history.unload("g", at(7))
    history.unload("g", at(9))
    assert [(told.outcome, told.took_ms) for told in history.of("g")] == [("moved", 7)]


def test_the_end_of_one_that_began_elsewhere_is_not_noted() -> None:
    history = RebalanceHistory()
    history.end("g", 2, "why", {}, {"a": 1}, {}, at(1))
    assert list(history.of("g")) == []
    assert history.changes == 0


def test_what_is_kept_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rebalance_history, "MAX_GROUPS", 3)
    history = RebalanceHistory()
    for number in range(MAX_REBALANCES + MAX_RECENT):
        history.begin("busy", "leader_asked", "x" * 5_000, 1, at(number))
    assert len(history.of("busy")) == MAX_REBALANCES
    assert len(history.recent) == MAX_RECENT
    assert len(history.recent[0].reason) == rebalance_history.MAX_REASON_CHARS
    for name in ("b", "busy", "c", "d"):
        history.begin(name, "member_joined", "", 0, at(1))
    assert [name for name in ("busy", "b", "c", "d") if history.of(name)] == ["busy", "c", "d"]


def test_of_many_members_a_few_are_named_and_of_very_many_none() -> None:
    history = RebalanceHistory()
    history.begin("g", "member_joined", "", 0, at(0))
    history.end("g", 1, "", {}, dict.fromkeys(map(str, range(1_000))), {}, at(1))
    history.begin("g", "member_joined", "", 1_000, at(2))
    history.end("g", 2, "", {}, dict.fromkeys(map(str, range(50_000))), {}, at(3))
    some, none = history.of("g")
    assert (len(some.joined), some.joined_more) == (5, 995)
    assert (none.joined, none.joined_more, none.members) == ((), 0, 50_000)
