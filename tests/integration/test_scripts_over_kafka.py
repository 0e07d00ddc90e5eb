"""The scripts of the group protocol once more, by Kafka's own requests: all that they can say, newest and old versions."""

from __future__ import annotations

from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path

import pytest
import pytest_asyncio

from coordinator.embedded import Coordinator
from tests.integration.kafka_requests import NEWEST, OLD, Versions
from tests.integration.scripts_over_kafka import OPTIONS, SPEAKS_AS_IT_JOINS, run_over_kafka, why_not_over_kafka
from tests.integration.scripts_over_sockets import create_topics, visible, why_not
from tests.scripts.run import SCRIPTS
from tests.scripts.script import FOLDER, Expectation, ScriptError, name_of, parse

pytestmark = pytest.mark.asyncio(loop_scope="module")

BY_NEWEST = [path for path in SCRIPTS if not why_not_over_kafka(parse(path), NEWEST)]
BY_OLD = [path for path in SCRIPTS if not why_not_over_kafka(parse(path), OLD)]


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def newest() -> AsyncIterator[Coordinator]:
    """One daemon for all scripts in the newest versions: each has groups of its own."""
    async with Coordinator(**OPTIONS) as running:
        await create_topics(running)
        yield running


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def old() -> AsyncIterator[Coordinator]:
    """One for those in the old versions."""
    async with Coordinator(**OPTIONS) as running:
        await create_topics(running)
        yield running


@pytest.mark.parametrize("path", BY_NEWEST, ids=name_of)
async def test_the_daemon_does_what_the_script_says_in_the_newest_versions(
    path: Path, newest: Coordinator, tmp_path: Path
) -> None:
    await run_over_kafka(parse(path), newest, tmp_path, NEWEST)


@pytest.mark.parametrize("path", BY_OLD, ids=name_of)
async def test_the_daemon_does_what_the_script_says_in_old_versions(
    path: Path, old: Coordinator, tmp_path: Path
) -> None:
    await run_over_kafka(parse(path), old, tmp_path, OLD)


async def test_most_scripts_that_run_over_sockets_are_spoken() -> None:
    over_sockets = [path for path in SCRIPTS if not why_not(parse(path))]
    assert len(BY_NEWEST) > 0.8 * len(over_sockets)
    assert len(BY_OLD) > 0.5 * len(over_sockets)
    assert SPEAKS_AS_IT_JOINS in map(name_of, BY_NEWEST)


@pytest.mark.parametrize("versions", [NEWEST, OLD], ids=["newest", "old"])
@pytest.mark.parametrize("name", ["sync/order", "connection/sync", "commit/refused"])
async def test_each_visible_line_can_fail(name: str, versions: Versions, newest: Coordinator, tmp_path: Path) -> None:
    script = parse(FOLDER / f"{name}.txt")
    assert not why_not_over_kafka(script, versions)
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
        folder = script.path.parent.with_name(f"wrong {number} {versions is OLD}")  # groups of its own
        with pytest.raises(ScriptError, match=f":{step.line}: "):
            await run_over_kafka(
                replace(script, path=folder / script.path.name, steps=steps), newest, tmp_path, versions
            )
