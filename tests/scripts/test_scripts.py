"""Every script says exactly what the coordinator does, and each of its lines can fail."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from tests.scripts.run import SCRIPTS, record, run
from tests.scripts.script import FOLDER, Expectation, ScriptError, Step, compare, name_of, parse


def test_there_are_scripts() -> None:
    assert len(SCRIPTS) >= 150


def test_each_script_has_its_place_in_the_tables_of_rules() -> None:
    rules = (FOLDER / "README.md").read_text(encoding="utf-8").split("## The rules")[1]
    assert sorted(re.findall(r"`([a-z]+/[a-z_]+)`(?=[,\s|])", rules)) == sorted(name_of(path) for path in SCRIPTS)


@pytest.mark.parametrize("path", SCRIPTS, ids=name_of)
def test_the_coordinator_does_what_the_script_says(path: Path) -> None:
    run(parse(path))


@pytest.mark.parametrize("path", SCRIPTS, ids=name_of)
def test_a_script_opens_with_what_it_shows(path: Path) -> None:
    assert path.read_text(encoding="utf-8").startswith("# ")


@pytest.mark.parametrize("path", SCRIPTS, ids=name_of)
def test_each_line_of_a_script_can_fail(path: Path) -> None:
    script = parse(path)
    assert script.expectations
    for step, happened in zip(script.steps, record(script), strict=True):
        for wrong in _wrong(step):
            with pytest.raises(ScriptError, match=f"^{script.name}:{step.line}: "):
                compare(script, wrong, happened)


def _wrong(step: Step) -> Iterator[Step]:
    """The step without one of its lines, with an answer that does not come, and with wrong reasons."""
    for index, expected in enumerate(step.expected):
        before, after = step.expected[:index], step.expected[index + 1 :]
        yield replace(step, expected=before + after)
        if expected.because is not None:
            yield replace(step, expected=(*before, replace(expected, because="it was a Tuesday"), *after))
    never = Expectation("->", "Z heartbeat: NONE", None, step.line)
    yield replace(step, expected=(*step.expected, never))


def _always(answer: object) -> Callable[..., object]:
    return lambda *arguments, **options: answer


SABOTAGE: tuple[tuple[str, object], ...] = (
    ("coordinator.groups.refusals.group_id_fault", _always(None)),
    ("coordinator.groups.join.unknown_group", _always(None)),
    ("coordinator.groups.group.Group.others_support", _always(True)),
    ("coordinator.groups.group.Group.next_generation", lambda group: group.generation + 1),
    ("coordinator.groups.group.Group.longest_rebalance_timeout_ms", _always(5000)),
    ("coordinator.groups.group.Group.remember_departed", _always(None)),
    ("coordinator.groups.rebalance.answer_heartbeats", _always(None)),
    ("coordinator.groups.rebalance.refuse_syncs", _always(None)),
    ("coordinator.groups.rebalance.stop_sync_timer", _always(None)),
    ("coordinator.groups.sync.mark_synced", _always(None)),
    ("coordinator.groups.session.renew_session", _always(None)),
    ("coordinator.groups.offsets.renew_session", _always(None)),
    ("coordinator.groups.rebalance._stop_session", _always(None)),
    ("coordinator.groups.session.forget_join", _always(None)),
    ("coordinator.groups.core.renew_session", _always(None)),
    ("coordinator.groups.join.maybe_complete_join", _always(None)),
    ("coordinator.groups.session.maybe_complete_join", _always(None)),
    ("coordinator.groups.offsets.partition_fault", _always(None)),
    ("coordinator.groups.offsets._commit_fault", _always(None)),
    ("coordinator.groups.pending_offsets._fault", _always(None)),
    ("coordinator.groups.pending_offsets._epoch_fault", _always(None)),
    ("coordinator.groups.pending_offsets._size_fault", _always(None)),
    ("coordinator.groups.pending_offsets._is_earlier", _always(False)),
    ("coordinator.groups.pending_offsets._says_the_same", _always(False)),
    ("coordinator.groups.pending_offsets.forget", _always(None)),
    ("coordinator.groups.offsets.pending_places", _always(frozenset())),
    ("coordinator.groups.offsets.overtake", _always(None)),
    ("coordinator.groups.offsets._forget_pending", _always(0)),
    ("coordinator.groups.expiry.pending_places", _always(frozenset())),
    ("coordinator.groups.staged._moved", _always(None)),
    ("coordinator.groups.staged._partition_fault", _always(None)),
    ("coordinator.groups.staged.member_fault", _always(None)),
    ("coordinator.groups.sync._protocol_fault", _always(None)),
    ("coordinator.groups.join.too_many", _always(None)),
    ("coordinator.groups.join.changed_topics", _always(None)),
    ("coordinator.groups.join.begin_initial_delay", _always(None)),
    ("coordinator.groups.rebalance.extend_initial_delay", _always(False)),
    ("coordinator.groups.session.on_pending_timer", _always(None)),
    ("coordinator.groups.session.identity_fault", _always(None)),
    ("coordinator.groups.join.identity_fault", _always(None)),
    ("coordinator.groups.refusals.identity_fault", _always(None)),
    ("coordinator.groups.static._write", _always(None)),
    ("coordinator.groups.static._other_choice", _always(None)),
    ("coordinator.groups.static.wants_otherwise", _always(None)),
    ("coordinator.groups.static.answer_all", _always(None)),
    ("coordinator.groups.deletion._delete_fault", _always(None)),
    ("coordinator.groups.deletion._offsets_fault", _always(None)),
    ("coordinator.groups.subscriptions.Subscriptions.has", _always(False)),
    ("coordinator.groups.expiry._Pass._may_expire", _always(True)),
    ("coordinator.groups.expiry._Pass._in_use", _always(False)),
)
"""One safeguard of the coordinator each, and what takes its place."""


@pytest.mark.parametrize(("safeguard", "replacement"), SABOTAGE, ids=[name for name, _ in SABOTAGE])
def test_a_safeguard_that_is_switched_off_is_noticed(
    safeguard: str, replacement: object, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(safeguard, replacement)
    assert any(_fails(path) for path in SCRIPTS), f"no script needs {safeguard}"


def _fails(path: Path) -> bool:
    try:
        run(parse(path))
    except (ScriptError, AssertionError, KeyError, AttributeError, StopIteration):
        return True
    return False
