"""``cohort demo`` on a few files: a member is killed, and nothing is lost."""

from __future__ import annotations

import argparse
import json
import signal
import subprocess
from pathlib import Path

import pytest

from client.demo.member import CountingMember
from coordinator import Coordinator
from tests.integration.cohort_command import ROOT, arguments, cohort, environment, objects
from tests.integration.consuming import create, until


@pytest.fixture
def files(tmp_path: Path) -> Path:
    """Thirty files of different lengths, one of them empty, one without a line feed at its end."""
    directory = tmp_path / "files"
    directory.mkdir()
    for number in range(28):
        lines = "".join(f"line {each} of file {number}\n" for each in range(number * 5 + 1))
        (directory / f"file-{number}.txt").write_text(lines, encoding="utf-8")
    (directory / "empty.txt").touch()
    (directory / "open-end.txt").write_bytes(b"two words\n\xff\xfe no text\nlast")
    (directory / "binary").write_bytes(b"\0\1\2\n")
    return directory


def test_nothing_is_lost_when_a_member_is_killed(files: Path, tmp_path: Path) -> None:
    events = objects("demo", str(files))
    result = events[-1]
    produced = sum(number * 5 + 1 for number in range(28)) + 3
    assert (result["produced"], result["delivered"], result["lost"]) == (produced, produced, 0)
    assert result["lines"] == produced
    assert result["files_unlike"] == []
    (kill,) = [event for event in events if event["event"] == "kill"]
    assert 0 < kill["processed"] < kill["share"]
    assert result["redelivered"] >= kill["uncommitted"] > 0
    assert result["deliveries"] == produced + result["redelivered"]
    rebalances = [event for event in events if event["event"] == "rebalance"]
    assert len(rebalances) == result["rebalances"]
    assert all(event["reason"] for event in rebalances)
    before = [event for event in events[: events.index(kill)] if event["event"] == "rebalance"][-1]
    after = rebalances[-1]
    assert sorted(before["owners"]) == ["member-1", "member-2", "member-3"]
    assert sorted(number for owned in after["owners"].values() for number in owned) == list(range(12))
    assert kill["name"] not in after["owners"]
    assert "member-4" in after["owners"]
    since = " ".join(event["reason"] for event in rebalances[rebalances.index(before) + 1 :])
    assert f"{kill['name']} missed its session" in since  # on a slow machine before member-4 has started
    assert result["seconds"] < 60


def test_exactly_once_nothing_is_lost_and_nothing_comes_twice(files: Path) -> None:
    events = objects("demo", "--exactly-once", str(files))
    result = events[-1]
    produced = sum(number * 5 + 1 for number in range(28)) + 3
    assert (result["produced"], result["delivered"], result["lost"], result["redelivered"]) == (
        produced,
        produced,
        0,
        0,
    )
    assert (result["files_unlike"], result["contradictions"], result["unexpected"]) == ([], 0, 0)
    assert result["taken_back"] > 0, "the member that was killed had outputs in the log"
    again = result["at_least_once"]
    assert (again["delivered"], again["lost"]) == (produced, 0)
    assert again["redelivered"] > 0, "and at least once they are counted twice"
    kills = [event for event in events if event["event"] == "kill"]
    assert len(kills) == 2
    assert all(0 < kill["processed"] < kill["share"] for kill in kills)


def test_nothing_is_lost_when_the_node_that_leads_most_is_killed(files: Path) -> None:
    events = objects("demo", "--cluster", str(files))
    result = events[-1]
    produced = sum(number * 5 + 1 for number in range(28)) + 3
    assert (result["produced"], result["delivered"], result["lost"]) == (produced, produced, 0)
    assert (result["files_unlike"], result["contradictions"], result["unexpected"]) == ([], 0, 0)
    (kill,) = [event for event in events if event["event"] == "kill"]
    assert kill["led"] >= 1
    assert 0 < result["gap_s"] < 30
    refused = cohort("demo", "--cluster", "--exactly-once")
    assert refused.returncode == 1
    assert "--cluster is a demonstration by itself" in refused.stderr


def test_people_see_the_story_and_its_end(tmp_path: Path) -> None:
    (tmp_path / "one.txt").write_text("only one line\n", encoding="utf-8")
    done = cohort("demo", str(tmp_path / "one.txt"))
    assert done.returncode == 0, done.stderr
    assert "is killed (SIGKILL)" in done.stdout
    assert "Nothing was lost" in done.stdout
    assert "\033[" not in done.stdout
    assert max(map(len, done.stdout.splitlines())) <= 100


def test_paths_that_do_not_exist_or_hold_nothing_are_failures(tmp_path: Path) -> None:
    missing = cohort("demo", str(tmp_path / "nowhere"))
    assert missing.returncode == 1
    assert "nowhere" in missing.stderr
    nothing = cohort("demo", str(tmp_path))
    assert nothing.returncode == 1
    assert "no text files" in nothing.stderr


def test_ctrl_c_leaves_no_process_and_no_directory_behind(files: Path, tmp_path: Path) -> None:
    temporary = tmp_path / "temporary"
    temporary.mkdir()
    pids: list[int] = []
    with subprocess.Popen(
        arguments("demo", "--json", str(files)),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        cwd=ROOT,
        env=environment() | {"TMPDIR": str(temporary)},
    ) as demo:
        assert demo.stdout is not None
        for line in demo.stdout:
            event = json.loads(line)
            if "pid" in event:
                pids.append(event["pid"])
            if event["event"] == "kill":
                break
        demo.send_signal(signal.SIGINT)
        demo.stdout.read()
        assert demo.stderr is not None
        assert b"interrupted by SIGINT" in demo.stderr.read()
        assert demo.wait(30) == 1
    assert len(pids) >= 4
    assert [pid for pid in pids if Path(f"/proc/{pid}").exists()] == []
    assert list(temporary.iterdir()) == []


async def test_a_member_that_may_go_reads_whatever_it_is_assigned(tmp_path: Path) -> None:
    async with Coordinator() as c:
        await create(c.address, lines=3)
        options = {"bootstrap": c.address, "group": "counters", "topic": "lines", "name": "member-1"}
        member = CountingMember(argparse.Namespace(**options, results=tmp_path / "results"))
        consumer = member._consumer
        consumer.subscribe(["lines"], listener=member)
        async with consumer:
            await until(lambda: len(consumer.paused()) == 3)  # it waits for its command
            member._batch = 10
            await consumer.enforce_rebalance("the partitions come back while they are paused")
            await until(lambda: len(consumer.assignment()) == 3 and not consumer.paused())
