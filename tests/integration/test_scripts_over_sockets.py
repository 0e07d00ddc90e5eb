"""The scripts of the group protocol once more, at a real daemon over real sockets: all that need no jump of the clock."""

from __future__ import annotations

from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path

import pytest
import pytest_asyncio

from coordinator.embedded import Coordinator
from tests.integration.scripts_over_sockets import create_topics, run_over_sockets, visible, why_not
from tests.scripts.run import SCRIPTS
from tests.scripts.script import FOLDER, Expectation, ScriptError, name_of, parse

pytestmark = pytest.mark.asyncio(loop_scope="module")

OVER_SOCKETS = [path for path in SCRIPTS if not why_not(parse(path))]


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def coordinator() -> AsyncIterator[Coordinator]:
    """One daemon for all scripts: each has groups of its own."""
    async with Coordinator(log_level="error") as running:
        await create_topics(running)
        yield running


async def test_most_scripts_run_over_sockets() -> None:
    assert len(OVER_SOCKETS) > len(SCRIPTS) / 2


@pytest.mark.parametrize("path", OVER_SOCKETS, ids=name_of)
async def test_the_daemon_does_what_the_script_says(path: Path, coordinator: Coordinator, tmp_path: Path) -> None:
    await run_over_sockets(parse(path), coordinator, tmp_path)


@pytest.mark.parametrize(
    "name", ["join/second_member", "sync/order", "leave/parked", "connection/sync", "commit/refused"]
)
async def test_each_visible_line_can_fail(name: str, coordinator: Coordinator, tmp_path: Path) -> None:
    script = parse(FOLDER / f"{name}.txt")
    wrong = [
        (index, replace(step, expected=tuple(one for one in step.expected if one is not left_out)))
        for index, step in enumerate(script.steps)
        for left_out in visible(step).expected
    ]
    never = "A heartbeat: NONE"
    wrong += [
        (index, replace(step, expected=(*step.expected, Expectation("->", never, None, step.line))))
        for index, step in enumerate(script.steps)
    ]
    for number, (index, step) in enumerate(wrong):
        steps = [*script.steps[:index], step, *script.steps[index + 1 :]]
        folder = script.path.parent.with_name(f"wrong-{number}")  # groups of its own
        with pytest.raises(ScriptError, match=f":{step.line}: "):
            await run_over_sockets(replace(script, path=folder / script.path.name, steps=steps), coordinator, tmp_path)
