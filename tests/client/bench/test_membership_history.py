"""The recorded history of membership changes: data that never changes, and figures that come out the same each time."""

from __future__ import annotations

from hashlib import sha256
from importlib.resources import files
from itertools import pairwise

import pytest

from client.assignors import Assignor, Subscription
from client.bench.assign_cases import ASSIGNORS
from client.bench.membership_history import History, replay, table
from protocol.subscription import TopicPartition

RECORD = files("client.bench") / "membership_history.txt"


def test_the_record_is_the_one_that_was_published() -> None:
    changes = [line for line in RECORD.read_text(encoding="utf-8").splitlines() if not line.startswith("#")]
    digest = sha256("\n".join(changes).encode()).hexdigest()
    assert digest == "d87412c3a5434dd8a51daba7ce99c2c9393a2e179494381700717d252a3eef6f"


def test_it_has_two_hundred_changes_that_fit_together() -> None:
    history = History.recorded()
    groups = list(history.groups())
    assert len(history.changes) == 200
    assert len(groups) == 201
    for before, after in pairwise(groups):
        assert len(set(after)) == len(after) > 0
        assert len(set(before) ^ set(after)) == 1


@pytest.mark.parametrize("assignor", ASSIGNORS, ids=lambda assignor: assignor.name)
def test_a_replay_comes_out_the_same_but_for_the_times(assignor: Assignor) -> None:
    first, second = (replay(History.recorded(), assignor) for _ in range(2))
    second.took_s = first.took_s
    assert first == second
    assert len(first.spread) == len(first.moved) == len(first.needed) == len(first.rebalances) == 200
    assert len(first.took_s) == sum(first.rebalances) + 1


@pytest.mark.parametrize("assignor", ASSIGNORS[1:], ids=lambda assignor: assignor.name)
def test_all_but_range_are_even_and_move_what_they_must_at_least(assignor: Assignor) -> None:
    outcome = replay(History.recorded(), assignor)
    assert max(outcome.spread) <= 1
    assert all(moved >= needed for moved, needed in zip(outcome.moved, outcome.needed, strict=True))


def test_figures_are_counted_right() -> None:
    """One topic of four: two members, then three, then the first two again."""
    history = History({"t": 4}, ("a", "b"), (("c", True), ("c", False)))
    outcome = replay(history, ASSIGNORS[0])  # range: 01 23, then 01 2 3, then 01 23
    assert (outcome.spread, outcome.moved, outcome.needed) == ([1, 0], [1, 1], [1, 1])
    assert outcome.rebalances == [1, 1]
    assert table([outcome]).splitlines()[2].startswith("| `range` | 0.50 | 1 | 2 | 1.0 | 1.0 | 1.00 | ")


def test_an_assignor_that_never_shares_out_everything_is_found() -> None:
    class Lazy:
        name = "lazy"

        def assign(
            self, partitions: dict[str, int], members: dict[str, Subscription]
        ) -> dict[str, list[TopicPartition]]:
            return {member_id: [] for member_id in members}

    with pytest.raises(ValueError, match="lazy: change 0 leaves partitions without owner"):
        replay(History({"t": 1}, ("a",), ()), Lazy())  # type: ignore[arg-type]
