"""Half a minute of chaos for Kafka's clients with a fixed seed, and what its checks find.

``-m "not chaos"`` leaves the first one out, ``python -m tests.chaos.kafka`` runs others.
"""

from __future__ import annotations

import re
from pathlib import Path
from random import Random

import pytest

from tests.chaos.command_line import output_of
from tests.chaos.kafka.checks import owned_twice, told_of_faults, violations
from tests.chaos.kafka.world import GROUPS, KINDS
from tests.chaos.ledger import Entry
from tests.chaos.registry import FAULTS
from tests.chaos.schedule import schedule
from tests.chaos.small import Story, assigned, at, commit, committed, delivered, healthy

SEED = 1  # kills of a member and of a producer, a member and a daemon that are stopped, answers that are lost


@pytest.mark.chaos
@pytest.mark.timeout(420)
def test_half_a_minute_of_chaos_for_kafka_s_clients(tmp_path: Path) -> None:
    said = output_of("tests.chaos.kafka", "--minutes", "0.5", "--seed", str(SEED), report=tmp_path, timeout_s=400)
    handled = dict(re.findall(r"(aiokafka|cohort|confluent) (\d+)", said.partition("handled: ")[2]))
    assert all(int(handled[client]) > 100 for client in ("aiokafka", "cohort", "confluent")), handled


def test_its_faults_are_those_of_the_chaos_runs_and_it_kills() -> None:
    assert set(KINDS) <= set(FAULTS)
    drawn = {step.kind for step in schedule(Random(f"schedule {SEED}"), 30, KINDS)}
    assert {"kill-member", "kill-producer", "stop-member", "lose-answers"} <= drawn
    assert {"eager", "cooperative"} <= set(GROUPS)


def test_what_holds_of_a_sound_history_holds() -> None:
    assert not any(violations(healthy().done()).values())


def test_two_owners_of_one_generation_are_seen() -> None:
    story = Story().member("a1", assigned(10, 2), at(90, "left")).member("a2", assigned(10.2, 2), at(90, "left"))
    assert owned_twice(story.done()) == ["alpha orders-0: a1 and a2 both owned it in 2"]


@pytest.mark.parametrize("commits", [False, True])
def test_a_group_that_was_gone_begins_its_generations_anew_unless_it_had_committed(commits: bool) -> None:
    first = (assigned(10, 1), *((delivered(11, 0, 1), commit(11.5, 0, 2), committed(11.6, 0)) if commits else ()))
    story = Story().member("a1", *first, at(12, "left")).member("a2", assigned(13, 1), at(90, "left"))
    found = owned_twice(story.done())
    assert found == (["alpha orders-0: a1 and a2 both owned it in 1"] if commits else [])


@pytest.mark.parametrize(
    ("answer", "seen"),
    [(committed(13.6, 0), 1), (at(13.6, "commit-failed", number=0, error="UNKNOWN_MEMBER_ID"), 0)],
)
def test_a_commit_after_another_got_the_partition_is_seen_if_it_was_acknowledged(answer: Entry, seen: int) -> None:
    stale = (assigned(10, 1), delivered(11, 0, 1), commit(13.5, 0, 2), answer, at(90, "left"))
    story = Story().member("a1", *stale).member("a2", assigned(13, 2), at(90, "left"))
    found = owned_twice(story.done())
    assert len(found) == seen
    assert all("a1 (generation 1) committed 2 at 13.500, after a2 got it in 2" in text for text in found)


def test_what_no_fault_of_a_run_explains_is_seen() -> None:
    history = healthy().done()
    history.errors += [("a1", "OFFSET_OUT_OF_RANGE", "gone"), ("a1", "_TRANSPORT", "a connection broke")]
    history.sends[0].error = "OUT_OF_ORDER_SEQUENCE_NUMBER"
    assert told_of_faults(history) == ["a1: OFFSET_OUT_OF_RANGE: gone", "p0:0: OUT_OF_ORDER_SEQUENCE_NUMBER"]
