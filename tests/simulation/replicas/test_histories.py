"""Histories of replicas: every invariant holds, every seed replays, and what is drawn happens."""

from __future__ import annotations

from collections import Counter

import pytest

from tests.simulation import rings
from tests.simulation.replay import check_invariants, check_replays, check_shrinking, check_tracing
from tests.simulation.replicas.ablations import ABLATIONS, first_failure
from tests.simulation.replicas.history import run, shrink
from tests.simulation.replicas.plan import BEHAVIOURS, EVENTS, WORK, draw
from tests.simulation.rings import switched_off

HISTORIES = 1_200
STEPS_EACH = 500
BATCH = 300


@pytest.mark.parametrize("first", range(0, HISTORIES, BATCH))
def test_invariants_hold_in_every_history(first: int) -> None:
    check_invariants("tests.simulation.replicas", range(first, first + BATCH), STEPS_EACH, draw, run)


def test_the_seeds_draw_everything() -> None:
    plans = [draw(seed, STEPS_EACH) for seed in range(HISTORIES)]
    drawn = Counter(name for plan in plans for name in plan.behaviours)
    assert all(drawn[name] > HISTORIES // 10 for name in BEHAVIOURS)
    assert {plan.nodes for plan in plans} == {3, 4, 5}
    assert {(plan.replicas, plan.min_isr) for plan in plans} == {(3, 2), (2, 1), (3, 1)}


def test_histories_see_every_event_and_every_answer() -> None:
    text = "\n".join("\n".join(run(draw(seed, STEPS_EACH), traced=True).trace) for seed in range(60))
    for name in (*EVENTS, *WORK):
        assert f"[{name}]" in text, f"[{name}] never happened"
    for seen in (
        *("FENCED_LEADER_EPOCH", "STALE_BROKER_EPOCH", "OFFSET_OUT_OF_RANGE"),
        *("UNKNOWN_TOPIC_OR_PARTITION", "differs, epoch", "TruncateTo", "ResetTo", "set aside", "removes its log"),
        *("is lost", "is refused", "unheard", "goes on", "has lost its lease", "leases end"),
        *("the leader is gone, and none may be elected", "the leader stops", "an in-sync replica stops"),
        *("a reassignment begins", "the reassignment is done"),
    ):
        assert seen in text, f"{seen} never happened"


def test_a_seed_replays_its_history_exactly_under_any_hash_seed() -> None:
    check_replays("tests.simulation.replicas")


def test_a_trace_changes_nothing() -> None:
    check_tracing(draw(7, STEPS_EACH), run)


def test_a_failing_history_shrinks() -> None:
    ablation = next(one for one in ABLATIONS if one.safeguard == "a node that starts again does not lead on")
    short = check_shrinking(ablation, switched_off, first_failure, shrink)
    assert len(short.trace) > 10


def test_the_command_tells_how_many_steps_it_took_and_fails_with_a_short_trace(
    capsys: pytest.CaptureFixture[str],
) -> None:
    arguments = ["--core-steps", "2000", "--steps", "300", "--seed", "2"]
    assert rings.main("tests.simulation.replicas", None, draw, run, shrink, arguments) == 0
    assert "all invariants held" in capsys.readouterr().out
    ablation = next(one for one in ABLATIONS if one.safeguard == "followers read what is written")
    with switched_off(ablation):
        assert rings.main("tests.simulation.replicas", None, draw, run, shrink, ["--histories", "300"]) == 1
    assert "shrunk: Plan(" in capsys.readouterr().out
