"""Events of the daemon's log are stable names, and the documents list them."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent.parent
LEVELS = {"debug", "info", "warning", "error", "exception", "critical", "tell", "note"}
ROOMS = (
    "server",
    "server/handlers",
    "groups",
    "transactions",
    "runtime",
    "log",
    "logs",
    "filesystem",
    "metadata",
    "nodes",
    "controller",
    "replication",
    "web",
    ".",
)
"""Of the package ``coordinator``; the last are its own modules."""


def events(path: Path) -> Iterator[str]:
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if (
            isinstance(node, ast.Call)
            and isinstance(node.func, ast.Attribute)
            and node.func.attr in LEVELS
            and node.args
        ):
            first = node.args[0]
            if isinstance(first, ast.Constant) and isinstance(first.value, str):
                yield first.value


@pytest.mark.parametrize("room", ROOMS)
def test_each_event_has_a_name_in_snake_case_and_a_row_in_the_documents(room: str) -> None:
    page = (ROOT / "docs" / "operate.md").read_text(encoding="utf-8")
    folder = ROOT / "coordinator" / room
    named = sorted({event for path in folder.glob("*.py") for event in events(path)})
    assert named, "the daemon logs"
    assert [event for event in named if not re.fullmatch(r"[a-z]+(_[a-z]+)*", event)] == []
    assert [event for event in named if f"`{event}`" not in page] == []


def test_each_row_is_about_an_event_that_there_is() -> None:
    page = (ROOT / "docs" / "operate.md").read_text(encoding="utf-8")
    section = page.partition("| event | what happened |")[2].partition("\n## ")[0]
    rows = [line.split("|") for line in section.splitlines() if line.startswith("| `")]
    listed = {name for row in rows for name in re.findall(r"`([a-z_]+)`", row[1])}
    there = {event for path in (ROOT / "coordinator").rglob("*.py") for event in events(path)}
    assert listed
    assert listed - there == set()
