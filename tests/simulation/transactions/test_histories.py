"""Histories of transactions: every invariant holds, every seed replays, and what is drawn happens."""

from __future__ import annotations

import os
import subprocess
import sys
from collections import Counter

import pytest

from tests.simulation.transactions.ablations import ABLATIONS, first_failure, switched_off
from tests.simulation.transactions.history import run, shrink
from tests.simulation.transactions.plan import BEHAVIOURS, EVENTS, WORKLOADS, draw

HISTORIES = 200
STEPS_EACH = 800
BATCH = 50


@pytest.mark.parametrize("first", range(0, HISTORIES, BATCH))
def test_invariants_hold_in_every_history(first: int) -> None:
    for seed in range(first, first + BATCH):
        verdict = run(draw(seed, STEPS_EACH))
        replay = f"python -m tests.simulation.transactions --seed {seed} --steps {STEPS_EACH}"
        assert not verdict.invariant, f"{verdict.invariant}: {verdict.message}; replay with: {replay}"


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
    program = (
        "import hashlib; from tests.simulation.transactions.history import run\n"
        "from tests.simulation.transactions.plan import draw\n"
        "text = '\\n'.join(line for seed in (3, 4, 5) for line in run(draw(seed, 400), traced=True).trace)\n"
        "print(len(text), hashlib.sha256(text.encode()).hexdigest())"
    )
    seen = {
        subprocess.run(
            [sys.executable, "-c", program],
            env={**os.environ, "PYTHONHASHSEED": hash_seed},
            capture_output=True,
            check=True,
            text=True,
        ).stdout
        for hash_seed in ("0", "1", "777")
    }
    assert len(seen) == 1
    assert int(seen.pop().split()[0]) > 10_000


def test_a_trace_changes_nothing() -> None:
    plan = draw(7, STEPS_EACH)
    assert run(plan).steps == run(plan, traced=True).steps


def test_a_failing_history_shrinks() -> None:
    ablation = next(ablation for ablation in ABLATIONS if ablation.safeguard == "transactions time out")
    found = first_failure(ablation)
    assert found is not None
    _, verdict = found
    with switched_off(ablation):
        short = shrink(verdict)
    assert short.invariant == verdict.invariant
    assert len(short.plan.behaviours) <= 3
    assert len(short.plan.workloads) == 1
