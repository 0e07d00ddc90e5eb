"""Commands that are forked end, print, read and are killed as those for which a Python is started."""

from __future__ import annotations

import os
import socket
import subprocess
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from tests.integration.cohort_command import ROOT, arguments, environment
from tests.integration.forked_commands import run_forked


@pytest.mark.parametrize(
    "words",
    [
        ("--version",),
        ("topics", "list", "-b", "127.0.0.1:1"),
        ("topics", "list", "-b", "nowhere"),
        ("weather",),
        ("produce", "t", "-b", "127.0.0.1:1"),
        ("log", "dump", "no-such-file"),
    ],
)
def test_a_forked_command_says_what_a_started_one_says(words: tuple[str, ...]) -> None:
    started = subprocess.run(
        arguments(*words), input=b"a\n", capture_output=True, timeout=60, cwd=ROOT, env=environment()
    )
    forked = run_forked(words, b"a\n", environment(), ROOT, 60)
    assert (forked.returncode, forked.stdout, forked.stderr) == (started.returncode, started.stdout, started.stderr)


def test_it_has_an_environment_and_a_directory_of_its_own(tmp_path: Path) -> None:
    by_environment = run_forked(("topics", "list"), b"", environment() | {"COHORT_BOOTSTRAP": "127.0.0.1:1"}, ROOT, 60)
    assert b"127.0.0.1:1" in by_environment.stderr
    (tmp_path / "here.log").mkdir()
    there, elsewhere = (
        run_forked(("log", "dump", "here.log"), b"", environment(), place, 60) for place in (tmp_path, ROOT)
    )
    assert (there.stdout, there.stderr) != (elsewhere.stdout, elsewhere.stderr)


def test_it_is_killed_when_it_takes_too_long() -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        address = f"127.0.0.1:{silent.getsockname()[1]}"
        with pytest.raises(subprocess.TimeoutExpired):
            run_forked(("topics", "list", "-b", address), b"", environment(), ROOT, 1)
        connection, _ = silent.accept()
        connection.settimeout(30)
        while connection.recv(1024):
            pass  # it ends: nobody has the other end any more
        connection.close()


def test_several_run_side_by_side_and_leave_nothing_open() -> None:
    def version(_: int) -> bytes:
        return run_forked(("--version",), b"", environment(), ROOT, 60).stdout

    version(0)
    before = len(os.listdir("/proc/self/fd")) if os.path.isdir("/proc/self/fd") else 0
    with ThreadPoolExecutor(4) as threads:
        told = list(threads.map(version, range(8)))
    assert len(set(told)) == 1
    assert told[0].startswith(b"cohort ")
    assert before == (len(os.listdir("/proc/self/fd")) if before else 0)
