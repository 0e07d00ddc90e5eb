"""Histories of transactions: every invariant holds, every seed replays, and what is drawn happens."""

from __future__ import annotations

from collections import Counter

import pytest

from tests.simulation.replay import check_invariants, check_replays, check_shrinking, check_tracing
from tests.simulation.rings import switched_off
from tests.simulation.transactions.ablations import ABLATIONS, first_failure
from tests.simulation.transactions.history import run, shrink
from tests.simulation.transactions.plan import BEHAVIOURS, EVENTS, WORKLOADS, draw

HISTORIES = 200
STEPS_EACH = 800
BATCH = 50


@pytest.mark.parametrize("first", range(0, HISTORIES, BATCH))
def test_invariants_hold_in_every_history(first: int) -> None:
    check_invariants("tests.simulation.transactions", range(first, first + BATCH), STEPS_EACH, draw, run)


def test_the_seeds_draw_everything() -> None:
    plans = [draw(seed, STEPS_EACH) for seed in range(HISTORIES)]
    drawn = Counter(name for plan in plans for name in (*plan.behaviours, *plan.workloads))
    assert all(drawn[name] > HISTORIES // 10 for name in (*BEHAVIOURS, *WORKLOADS))
    assert Counter(plan.last_epoch for plan in plans)[3] > HISTORIES // 3


def test_histories_see_every_event_and_every_answer() -> None:
    text = "\n".join("\n".join(run(draw(seed, STEPS_EACH), traced=True).trace) for seed in range(40))
    for name in EVENTS:
        assert f"[{name}]" in text, f"[{name}] never happened"
    for answer in (
        "TRANSACTION_ABORTABLE",
        "PRODUCER_FENCED",
        "CONCURRENT_TRANSACTIONS",
        "COORDINATOR_NOT_AVAILABLE",
        "aborted=True",
        "INVALID_PRODUCER_ID_MAPPING",
        "previous_outcome=1",
        "previous_outcome=2",
    ):
        assert answer in text, f"{answer} was never answered"
    for how in ("COMMITTED", "ABORTED", "TIMED_OUT", "ADMIN", "FENCED", "RENEWED"):
        assert f"how=<Ended.{how}" in text, f"no epoch ended as {how}"


def test_a_seed_replays_its_history_exactly_under_any_hash_seed() -> None:
    check_replays("tests.simulation.transactions")


def test_a_trace_changes_nothing() -> None:
    check_tracing(draw(7, STEPS_EACH), run)


def test_a_failing_history_shrinks() -> None:
    ablation = next(ablation for ablation in ABLATIONS if ablation.safeguard == "transactions time out")
    short = check_shrinking(ablation, switched_off, first_failure, shrink)
    assert len(short.plan.behaviours) <= 3
    assert len(short.plan.workloads) == 1
