"""Two minutes of chaos with a fixed seed; ``-m "not chaos"`` leaves it out, ``python -m tests.chaos`` runs others.

What the pieces promise: a schedule belongs to its seed, the picture shows what happened, a proxy does as it is told.
"""

from __future__ import annotations

import asyncio
import subprocess
import sys
from pathlib import Path
from random import Random
from xml.etree import ElementTree

import pytest

from tests.chaos.groups import KINDS, ChaosGroup
from tests.chaos.processes import ROOT
from tests.chaos.proxy import Proxy
from tests.chaos.registry import FAULTS
from tests.chaos.run import plan
from tests.chaos.schedule import schedule
from tests.chaos.small import healthy
from tests.chaos.timeline import timeline
from tests.chaos.world import free_port

SEED = 361  # all kinds of faults come up in its schedule when all may
GROUPS = ("upgrade-static", "cooperative")


@pytest.mark.chaos
@pytest.mark.timeout(420)
def test_two_minutes_of_chaos(tmp_path: Path) -> None:
    options = ("--minutes", "2", "--seed", str(SEED), "--groups", ",".join(GROUPS), "--kinds", ",".join(FAULTS))
    command = (sys.executable, "-m", "tests.chaos", *options, "--report", str(tmp_path))
    ended = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=400, check=False)
    assert ended.returncode == 0, ended.stdout[-6000:] + ended.stderr[-3000:]
    assert "VIOLATED" not in ended.stdout
    assert (tmp_path / f"timeline-{SEED}.svg").exists()


def test_a_schedule_belongs_to_its_seed() -> None:
    once, again, other = (schedule(Random(f"schedule {seed}"), 120) for seed in (1, 1, 2))
    assert once == again
    assert once != other
    assert len(once) > 15


def test_every_fault_comes_up_in_some_schedule() -> None:
    assert {step.kind for step in schedule(Random(f"schedule {SEED}"), 120, list(FAULTS))} == set(FAULTS)
    assert {step.kind for seed in range(20) for step in schedule(Random(seed), 120)} == set(FAULTS)


def test_every_kind_of_group_comes_up_in_some_run(tmp_path: Path) -> None:
    drawn: set[str] = set()
    for seed in range(40):
        world, _ = plan(seed, tmp_path, 4, 8)
        drawn.update(group[2:] for group in world.groups)
        world.ledger.close()
    assert drawn == set(KINDS)


@pytest.mark.parametrize("kind", KINDS)
def test_members_that_meet_in_a_group_have_an_assignor_in_common(kind: str) -> None:
    stages = KINDS[kind].stages
    for stage, later in zip(stages, [*stages[1:], stages[-1]], strict=True):
        common = set.intersection(*(set(assignors) for assignors in (*stage, *later)))
        assert common


def test_an_upgrade_goes_up_and_down_by_one_stage() -> None:
    group = ChaosGroup(0, "upgrade")
    stages = []
    for _ in range(6):
        stages.append(group.stage)
        group.upgrade()
    assert stages == [0, 1, 2, 1, 0, 1]


def test_the_picture_is_well_formed_and_shows_members_and_faults() -> None:
    story = healthy().stopped("a2", 40, 45).fault(20, 25)
    picture = ElementTree.fromstring(timeline(story.done(), "seed <1> & more"))
    texts = [element.text for element in picture.iter() if element.tag.endswith("text")]
    assert {"a1", "a2", "alpha", "cut-off refused", "#2 o0"} <= set(texts)


async def echo(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    while chunk := await reader.read(100):
        writer.write(chunk)
    writer.close()


async def test_a_proxy_does_as_it_is_told() -> None:
    async with await asyncio.start_server(echo, "127.0.0.1", 0) as server:
        proxy = Proxy(free_port(), server.sockets[0].getsockname()[1])
        await proxy.accept()
        reader, writer = await asyncio.open_connection("127.0.0.1", proxy.port)
        writer.write(b"passes")
        assert await reader.readexactly(6) == b"passes"

        for direction in ("up", "down"):
            proxy.stall("up" if direction == "up" else "down")
            writer.write(b"waits")
            with pytest.raises(TimeoutError):
                async with asyncio.timeout(0.1):
                    await reader.readexactly(1)
            proxy.release()
            assert await reader.readexactly(5) == b"waits"

        assert proxy.reset(1.0) == 1
        with pytest.raises(ConnectionResetError):
            await reader.readexactly(1)
        writer.close()

        await proxy.refuse()
        with pytest.raises(ConnectionRefusedError):
            await asyncio.open_connection("127.0.0.1", proxy.port)
        await proxy.close()
