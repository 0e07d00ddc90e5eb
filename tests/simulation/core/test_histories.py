"""The group core in simulated histories: all invariants hold, a seed is a history, and they see what they should."""

from __future__ import annotations

from collections import Counter

import pytest

from coordinator.groups.expiry import EXPIRY_TIMER
from coordinator.groups.state import TRANSITIONS, GroupState
from tests.simulation.core.ablations import ABLATIONS, first_failure, switched_off
from tests.simulation.core.history import run, shrink
from tests.simulation.core.plan import BEHAVIOURS, EVENTS, draw
from tests.simulation.core.steps import STEPS
from tests.simulation.core.world import World
from tests.simulation.replay import check_invariants, check_replays, check_shrinking, check_tracing

HISTORIES = 300
STEPS_EACH = 1_000
BATCH = 50


@pytest.mark.parametrize("first", range(0, HISTORIES, BATCH))
def test_invariants_hold_in_every_history(first: int) -> None:
    check_invariants("tests.simulation.core", range(first, first + BATCH), STEPS_EACH, draw, run)


def test_the_seeds_draw_everything() -> None:
    plans = [draw(seed, STEPS_EACH) for seed in range(HISTORIES)]
    drawn = Counter(name for plan in plans for name in plan.behaviours)
    assert all(drawn[name] > HISTORIES // 10 for name in BEHAVIOURS)
    assert {plan.clients for plan in plans} == set(range(2, 9))


def test_histories_see_every_state_with_several_members_and_every_answer() -> None:
    text = "\n".join("\n".join(run(draw(seed, STEPS_EACH), traced=True).trace) for seed in range(30))
    for name in EVENTS:
        assert f"[{name}]" in text, f"[{name}] never happened"
    for answer in (
        "ILLEGAL_GENERATION",
        "UNKNOWN_MEMBER_ID",
        "REBALANCE_IN_PROGRESS",
        "INCONSISTENT_GROUP_PROTOCOL",
        "FENCED_INSTANCE_ID",
        "MEMBER_ID_REQUIRED",
        "GROUP_MAX_SIZE_REACHED",
        "NON_EMPTY_GROUP",
        "GROUP_SUBSCRIBED_TO_TOPIC",
    ):
        assert answer in text
    for seen in ("though it was moved", "is lost", "closes", "records are not on disk"):
        assert seen in text


def test_a_seed_replays_its_history_exactly_under_any_hash_seed() -> None:
    check_replays("tests.simulation.core")


def test_a_trace_changes_nothing() -> None:
    check_tracing(draw(7, STEPS_EACH), run)


def test_a_failing_history_shrinks_to_few_steps_and_few_behaviours() -> None:
    ablation = next(ablation for ablation in ABLATIONS if ablation.safeguard == "generation fence in commit")
    short = check_shrinking(ablation, switched_off, first_failure, shrink)
    assert len(short.plan.behaviours) <= 3
    assert len(short.trace) < 200


def test_one_decision_moves_a_group_along_the_table_of_the_core() -> None:
    for before, after, grown in STEPS:
        if grown:  # through PreparingRebalance, at the end of which the generation grows
            assert before is GroupState.PREPARING_REBALANCE or GroupState.PREPARING_REBALANCE in TRANSITIONS[before]
            assert after in TRANSITIONS[GroupState.PREPARING_REBALANCE]
        else:
            assert before is after or after in TRANSITIONS[before]


def test_a_history_ends_with_nothing_left() -> None:
    world = World(draw(11, STEPS_EACH))
    world.run()
    assert all(group.state is GroupState.EMPTY for group in world.core.groups.values())
    assert not world.waiting
    assert not world.timers.keys() - {EXPIRY_TIMER}
