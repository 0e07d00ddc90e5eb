"""The core works where macOS differs from Linux: no fdatasync, no clock of the boot, no /proc, another way to sync."""

from __future__ import annotations

import errno
import fcntl
import os
import resource
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest
import structlog

from coordinator import __main__ as daemon
from coordinator.filesystem import files
from tests.integration.cohort_command import ROOT

CORE = (
    "tests/coordinator/filesystem",
    "tests/coordinator/log/test_partition.py",
    "tests/coordinator/inspection/test_check.py",
    "tests/integration/test_idempotence.py",
    "tests/integration/test_process_variants.py",
    "tests/integration/test_consumer_groups.py",
    "tests/integration/test_static_members.py",
    "tests/integration/test_member.py",
    "tests/integration/test_producer.py",
    "tests/integration/test_running.py",
)
"""Files, logs and their check; daemons in the process of the test and in their own; members and clients; signals."""


@pytest.mark.timeout(540)
def test_the_core_works_without_what_macos_lacks(tmp_path: Path) -> None:
    """Every process of these tests is without it, daemons too: each imports ``sitecustomize`` as it starts."""
    (tmp_path / "sitecustomize.py").write_text("import tests.as_on_macos")
    command = [sys.executable, "-m", "pytest", "-q", "-n", "0", "-p", "no:cacheprovider", *CORE]
    without = os.environ | {"PYTHONPATH": f"{tmp_path}{os.pathsep}{ROOT}"}
    done = subprocess.run(command, capture_output=True, text=True, timeout=500, cwd=ROOT, env=without)
    assert done.returncode == 0, done.stdout[-4000:] + done.stderr[-2000:]
    assert " passed" in done.stdout


def test_the_plugin_takes_the_names_away() -> None:
    program = "import tests.as_on_macos, os, time; print(hasattr(os, 'fdatasync'), hasattr(time, 'CLOCK_BOOTTIME'))"
    told = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60, cwd=ROOT)
    assert told.stdout == "False False\n", told.stderr


@pytest.mark.parametrize(("fault", "synced"), [(0, []), (errno.ENOTSUP, [7]), (errno.ENOTTY, [7])])
def test_where_a_drive_has_to_be_told_to_sync_it_is(
    fault: int, synced: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    """``F_FULLFSYNC`` of macOS; a file system that does not know it is synced as it can be."""
    asked: list[tuple[int, int]] = []
    other: list[int] = []

    def full_sync(descriptor: int, command: int) -> int:
        asked.append((descriptor, command))
        if fault:
            raise OSError(fault, os.strerror(fault))
        return 0

    monkeypatch.setattr(fcntl, "F_FULLFSYNC", 51, raising=False)
    monkeypatch.setattr(fcntl, "fcntl", full_sync)
    monkeypatch.setattr(files, "_sync", other.append)
    files.sync_data(7)
    assert asked == [(7, 51)]
    assert other == synced


def test_files_that_replace_others_and_directories_are_told_to_the_drive_too(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = list[str]()

    def full_sync(descriptor: int, command: int) -> int:
        assert command == 51
        asked.append(os.readlink(f"/proc/self/fd/{descriptor}"))
        return 0

    storage = files.FileStorage(tmp_path)
    storage.make_directory("t-0")
    monkeypatch.setattr(fcntl, "F_FULLFSYNC", 51, raising=False)
    monkeypatch.setattr(fcntl, "fcntl", full_sync)
    monkeypatch.setattr(os, "fsync", lambda descriptor: pytest.fail("it leaves what was written in the drive's cache"))
    storage.write_file("t-0/f", b"x")
    assert len(asked) == 2
    assert asked[0].startswith(f"{tmp_path}/t-0/f")
    assert asked[1] == f"{tmp_path}/t-0"


def test_a_drive_that_fails_to_sync_is_a_fault(monkeypatch: pytest.MonkeyPatch) -> None:
    def full_sync(descriptor: int, command: int) -> int:
        raise OSError(errno.EIO, os.strerror(errno.EIO))

    monkeypatch.setattr(fcntl, "F_FULLFSYNC", 51, raising=False)
    monkeypatch.setattr(fcntl, "fcntl", full_sync)
    with pytest.raises(OSError, match="Input/output"):
        files.sync_data(7)


def test_the_core_is_there() -> None:
    assert [path for path in CORE if not Path(ROOT, path).exists()] == []


def as_on_macos(*lines: str) -> str:
    """What a program prints that is without what macOS lacks, and is told that it runs there."""
    program = "\n".join(("import sys, tests.as_on_macos", "sys.platform = 'darwin'", *lines))
    told = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60, cwd=ROOT)
    assert told.returncode == 0, told.stderr
    return told.stdout


def test_times_are_taken_from_a_clock_that_goes_on_while_a_mac_sleeps() -> None:
    lines = (
        "import time",
        "from client.transport.background_loop import _CLOCK",
        "from coordinator.embedded import _BOOT_CLOCK",
    )
    assert as_on_macos(*lines, "print(_CLOCK == _BOOT_CLOCK == time.CLOCK_MONOTONIC)") == "True\n"


def test_each_start_counts_as_one_of_the_machine() -> None:
    lines = (
        "from coordinator.embedded import SYSTEM_ORIGINS",
        "print(len({SYSTEM_ORIGINS.boot_id() for _ in range(3)}))",
    )
    assert as_on_macos(*lines) == "3\n"


def test_a_benchmark_says_what_it_cannot_measure() -> None:
    told = as_on_macos(
        "from client.cli.failure import CommandError",
        "from client.cli.processes import ServerProcess, cpu_s",
        "class Server(ServerProcess): pid = 417",
        "for ask in (lambda: Server('the daemon').resident_bytes('VmRSS'), lambda: cpu_s(-7)):",
        "    try: ask()",
        "    except CommandError as error: print(error)",
    )
    memory, time = told.splitlines()
    assert memory == "the memory of the daemon is read from /proc/417/status, which only Linux has: there is no /proc"
    assert time.startswith("the processor time of process -7 is not told, as on Linux: ")


@pytest.mark.parametrize(("soft", "raised"), [(256, 10_240), (20_000, 20_000)])
def test_a_hard_limit_of_open_files_without_a_bound_is_not_taken_for_the_soft_one(
    soft: int, raised: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    def set_limit(kind: int, limits: tuple[int, int]) -> None:
        if limits[0] > 10_240:
            raise ValueError("current limit exceeds maximum limit")

    no_bound = 2**63 - 1  # RLIM_INFINITY of macOS
    monkeypatch.setattr(resource, "getrlimit", lambda kind: (soft, no_bound))
    monkeypatch.setattr(resource, "setrlimit", set_limit)
    with structlog.testing.capture_logs() as logs:
        assert daemon._raise_open_files() == raised
    assert [each["event"] for each in logs] == ["open_files_raised" if raised > soft else "open_files_not_raised"]


def test_the_pages_say_that_macos_is_supported_and_what_differs() -> None:
    """Each row of the table is a test of this file; what is taken away here is named there."""
    page = Path(ROOT, "docs", "operate.md").read_text(encoding="utf-8")
    section = page.partition("## On macOS\n")[2].partition("\n## ")[0]
    taken = as_on_macos("print(*tests.as_on_macos.TAKEN)").split()
    assert len(taken) == 3
    for name in (*taken, "F_FULLFSYNC", "CLOCK_MONOTONIC", f"{daemon._OPEN_MAX:,}"):
        assert name in section, name
    assert section.count("\n| ") == 1 + 5, "a further difference is a further test"
    assert "Linux or [macOS](docs/operate.md#on-macos)" in Path(ROOT, "README.md").read_text(encoding="utf-8")
    project = tomllib.loads(Path(ROOT, "pyproject.toml").read_text(encoding="utf-8"))["project"]
    assert "Operating System :: MacOS" in project["classifiers"]
