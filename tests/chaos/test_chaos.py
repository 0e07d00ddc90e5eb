"""Two minutes of chaos with a fixed seed; ``-m "not chaos"`` leaves it out, ``python -m tests.chaos`` runs others.

What the pieces promise: a schedule belongs to its seed, the picture shows what happened, a proxy does as it is told.
"""

from __future__ import annotations

import asyncio
from pathlib import Path
from random import Random
from xml.etree import ElementTree

import pytest

from tests.chaos.command_line import Trial, output_of, timed
from tests.chaos.groups import KINDS, ChaosGroup
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
    output_of("tests.chaos", *options, report=tmp_path, timeout_s=400)
    assert (tmp_path / f"timeline-{SEED}.svg").exists()


def test_ledgers_stay_where_a_check_was_violated_and_the_same_run_can_be_asked_for_again(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    verdicts: list[tuple[dict[str, list[str]], int]] = [({"lost": []}, 0), ({"lost": [], "twice": ["a at 3"]}, 1)]
    for found, status in verdicts:
        options = timed("tests.chaos", None, FAULTS).parse_args(
            ["--minutes", "0.5", "--seed", "7", "--report", str(tmp_path), "--kinds", "kill-daemon,cut-off"]
        )
        trial = Trial.begin("tests.chaos", options, "chaos")
        (trial.ledgers / "run.jsonl").touch()
        assert trial.judge(found, "3 records", kinds=options.kinds, groups=[], members="4..8") == status
        assert trial.ledgers.exists() == bool(status)
    said = capsys.readouterr().out
    assert "VIOLATED 1 times\n      a at 3\n3 records\n" in said
    again = "python -m tests.chaos --minutes 0.5 --seed 7 --kinds kill-daemon,cut-off --members 4..8"
    assert said.endswith(f"violated; ledgers: {tmp_path / 'ledgers-7'}\nagain: {again}\n")
    assert said.count("again:") == 1
    trial = Trial.begin("tests.chaos", options, "chaos")
    assert not list(trial.ledgers.iterdir()), "what another run has left there is gone"


def test_a_kind_that_does_not_exist_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        timed("tests.chaos", None, FAULTS).parse_args(["--kinds", "kill-daemon,kill-moon"])
    assert "kill-moon is no kind of fault" in capsys.readouterr().err


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
