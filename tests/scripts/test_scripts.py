"""Every script says exactly what the coordinator does, and each of its lines can fail."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from tests.scripts.run import SCRIPTS, run
from tests.scripts.script import Expectation, ScriptError, name_of, parse


def test_there_are_scripts() -> None:
    assert len(SCRIPTS) >= 30


@pytest.mark.parametrize("path", SCRIPTS, ids=name_of)
def test_the_coordinator_does_what_the_script_says(path: Path) -> None:
    run(parse(path))


@pytest.mark.parametrize("path", SCRIPTS, ids=name_of)
def test_a_script_opens_with_what_it_shows(path: Path) -> None:
    assert path.read_text(encoding="utf-8").startswith("# ")


@pytest.mark.parametrize("path", SCRIPTS, ids=name_of)
def test_a_line_left_out_of_the_script_is_missed(path: Path) -> None:
    script = parse(path)
    assert script.expectations
    for expectation in script.expectations:
        with pytest.raises(ScriptError):
            run(script.without(expectation.line))


@pytest.mark.parametrize("path", SCRIPTS, ids=name_of)
def test_an_answer_that_does_not_come_is_missed(path: Path) -> None:
    script = parse(path)
    for index, step in enumerate(script.steps):
        more = replace(step, expected=(*step.expected, Expectation("->", "Z heartbeat: NONE", None, step.line)))
        with pytest.raises(ScriptError):
            run(replace(script, steps=[*script.steps[:index], more, *script.steps[index + 1 :]]))


@pytest.mark.parametrize("path", SCRIPTS, ids=name_of)
def test_a_wrong_reason_is_noticed(path: Path) -> None:
    script = parse(path)
    for index, step in enumerate(script.steps):
        for at, expectation in enumerate(step.expected):
            if expectation.because is not None:
                wrong = replace(expectation, because="it was a Tuesday")
                changed = replace(step, expected=(*step.expected[:at], wrong, *step.expected[at + 1 :]))
                with pytest.raises(ScriptError, match="Tuesday"):
                    run(replace(script, steps=[*script.steps[:index], changed, *script.steps[index + 1 :]]))


def _always(answer: object) -> Callable[..., object]:
    return lambda *arguments, **options: answer


SABOTAGE: tuple[tuple[str, object], ...] = (
    ("coordinator.groups.refusals.group_id_fault", _always(None)),
    ("coordinator.groups.admission.unknown_group", _always(None)),
    ("coordinator.groups.group.Group.others_support", _always(True)),
    ("coordinator.groups.group.Group.next_generation", lambda group: group.generation + 1),
    ("coordinator.groups.group.Group.longest_rebalance_timeout_ms", _always(5000)),
    ("coordinator.groups.group.Group.remember_departed", _always(None)),
    ("coordinator.groups.rebalance.answer_heartbeat", _always(None)),
    ("coordinator.groups.rebalance.answer_sync", _always(None)),
    ("coordinator.groups.rebalance.stop_sync_timer", _always(None)),
    ("coordinator.groups.sync.mark_synced", _always(None)),
    ("coordinator.groups.heartbeat.renew_session", _always(None)),
    ("coordinator.groups.offsets.renew_session", _always(None)),
    ("coordinator.groups.waiting._stop_session", _always(None)),
    ("coordinator.groups.lifecycle.forget_join", _always(None)),
    ("coordinator.groups.lifecycle.renew_session", _always(None)),
    ("coordinator.groups.join.maybe_complete_join", _always(None)),
    ("coordinator.groups.leave.maybe_complete_join", _always(None)),
    ("coordinator.groups.offsets._partition_fault", _always(None)),
    ("coordinator.groups.offsets._commit_fault", _always(None)),
    ("coordinator.groups.sync._protocol_fault", _always(None)),
)
"""One safeguard of the coordinator each, and what takes its place."""


@pytest.mark.parametrize(("safeguard", "replacement"), SABOTAGE, ids=[name for name, _ in SABOTAGE])
def test_a_safeguard_that_is_switched_off_is_noticed(
    safeguard: str, replacement: object, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(safeguard, replacement)
    failed = 0
    for path in SCRIPTS:
        try:
            run(parse(path))
        except (ScriptError, AssertionError, KeyError, AttributeError):
            failed += 1
    assert failed, f"no script needs {safeguard}"
