"""A minute of exactly once with a fixed seed; ``-m "not chaos"`` leaves it out. The checks see what they are there for."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tests.chaos.command_line import output_of
from tests.chaos.exactly_once.checks import Outcome, violations
from tests.chaos.exactly_once.run import KINDS
from tests.chaos.registry import FAULTS

SEED = 3
HEALTHY = Outcome(
    inputs=["t-0@0 a", "t-0@1 b"],
    answers={"once": ["t-0@1 b", "t-0@0 a"], "plain": ["t-0@0 a", "t-0@1 b", "t-0@1 b"]},
    with_transactions=frozenset({"once"}),
    lag={"once": 0, "plain": 0},
)


def test_answers_come_in_any_order_and_twice_without_transactions() -> None:
    assert not any(violations(HEALTHY).values())


@pytest.mark.parametrize(
    ("change", "check"),
    [
        ({"answers": {"once": ["t-0@0 a"]}}, "unanswered"),
        ({"answers": {"plain": ["t-0@0 a"]}}, "unanswered"),
        ({"answers": {"once": ["t-0@0 a", "t-0@1 b", "t-0@1 b"]}}, "answered twice"),
        ({"answers": {"once": ["t-0@0 a", "t-0@1 b", "t-0@2 c"]}}, "answered without an input"),
        ({"lag": {"once": 3}}, "not committed"),
        ({"open_ends": ["answers-0 at 3 of 5"]}, "hanging transactions"),
        ({"crashes": ["a1: ended with status 1"]}, "crashed"),
        ({"unexpected": ["a1: HandlerError: no"]}, "unexpected errors"),
    ],
)
def test_a_bug_is_seen_by_its_check(change: dict[str, Any], check: str) -> None:
    assert [name for name, found in violations(replace(HEALTHY, **change)).items() if found] == [check]


def test_its_faults_are_of_the_chaos_runs() -> None:
    assert set(KINDS) <= set(FAULTS)


@pytest.mark.chaos
@pytest.mark.timeout(400)
def test_a_minute_of_exactly_once(tmp_path: Path) -> None:
    output_of("tests.chaos.exactly_once", "--minutes", "1", "--seed", str(SEED), report=tmp_path, timeout_s=380)
