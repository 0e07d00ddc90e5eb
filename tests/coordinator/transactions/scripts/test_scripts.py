"""Every script says exactly what the transaction core does, and the core's safeguards are missed when they are off."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from tests.coordinator.transactions.scripts.run import FOLDER, SCRIPTS, record, run
from tests.scripts.script import Expectation, ScriptError, compare, name_of, parse


def test_each_script_has_its_place_in_the_tables() -> None:
    tables = (FOLDER / "README.md").read_text(encoding="utf-8").split("## The scripts")[1]
    assert sorted(re.findall(r"^\| `([a-z]+/[a-z_0-9]+)` ", tables, re.M)) == sorted(name_of(path) for path in SCRIPTS)


@pytest.mark.parametrize("path", SCRIPTS, ids=name_of)
def test_the_core_does_what_the_script_says(path: Path) -> None:
    assert path.read_text(encoding="utf-8").startswith("# ")
    run(parse(path))


@pytest.mark.parametrize("path", SCRIPTS, ids=name_of)
def test_each_line_of_a_script_can_fail(path: Path) -> None:
    script = parse(path)
    assert script.expectations
    for step, happened in zip(script.steps, record(script), strict=True):
        never = Expectation("->", "Z init: NONE", None, step.line)
        wrong = [replace(step, expected=(*step.expected, never))]
        for index, expected in enumerate(step.expected):
            before, after = step.expected[:index], step.expected[index + 1 :]
            wrong.append(replace(step, expected=before + after))
            if expected.because is not None:
                wrong.append(replace(step, expected=(*before, replace(expected, because="a Tuesday"), *after)))
        for other in wrong:
            with pytest.raises(ScriptError, match=f"^{script.name}:{step.line}: "):
                compare(script, other, happened)


def _always(answer: object) -> Callable[..., object]:
    return lambda *arguments, **options: answer


SABOTAGE: tuple[tuple[str, object], ...] = (
    ("identity.id_fault", _always(None)),
    ("identity.timeout_fault", _always(None)),
    ("members.join_fault", _always(None)),
    ("members.scope_fault", _always(None)),
    ("ending.scope_fault", _always(None)),
    ("members.start_timeout", _always(None)),
    ("loading.start_timeout", _always(None)),
    ("ending.stop_timeout", _always(None)),
    ("ending._commit_fault", _always(None)),
    ("ending._may_go_on", _always(True)),
    ("ending.order_markers", _always(None)),
    ("loading.order_markers", _always(None)),
    ("loading.refuse_all", _always(None)),
    ("loading._left_ms", lambda state, step: state.identity.timeout_ms),
    ("carrying.carry", _always(None)),
    ("carrying.touch", _always(None)),
    ("carrying.begin", _always(None)),
    ("carrying.give_up", _always(None)),
    ("carrying.look", _always(None)),
    ("carrying.not_open", _always(None)),
    ("carrying.is_unsure", _always(True)),
    ("completing.finish", _always(None)),
    ("completing.write_finished", _always(None)),
    ("members._not_in", lambda known, asked: list(asked)),
    ("members._union", lambda known, new: tuple(new)),
    ("refusals._was_in", _always(False)),
    ("transaction.TransactionalId.waits_in", _always(False)),
    ("transaction.TransactionalId.is_decidable", property(_always(True))),
    ("transaction.TransactionalId.is_finished", property(_always(False))),
    ("expiry.Expiry._has_expired", _always(False)),
    ("parking.ask_again", lambda *_: iter(())),
    ("parking.on_timer", _always(None)),
)
"""One safeguard of the core each, and what takes its place."""


@pytest.mark.parametrize(("safeguard", "replacement"), SABOTAGE, ids=[name for name, _ in SABOTAGE])
def test_a_safeguard_that_is_switched_off_is_noticed(
    safeguard: str, replacement: object, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(f"coordinator.transactions.{safeguard}", replacement)
    assert any(_fails(path) for path in SCRIPTS), f"no script needs {safeguard}"


def _fails(path: Path) -> bool:
    try:
        run(parse(path))
    except (ScriptError, AssertionError, KeyError, AttributeError, TypeError):
        return True
    return False
