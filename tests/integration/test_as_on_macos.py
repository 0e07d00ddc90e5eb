"""The core works where macOS differs from Linux: no fdatasync, no clock of the boot, no /proc, another way to sync."""

from __future__ import annotations

import errno
import fcntl
import os
import subprocess
import sys
from pathlib import Path

import pytest

from coordinator.filesystem import files
from tests.integration.cohort_command import ROOT

CORE = (
    "tests/coordinator/log/test_partition.py",
    "tests/coordinator/log/test_recovery.py",
    "tests/integration/test_idempotence.py",
)
"""Files, logs, and a daemon in the process of the test with producers and groups."""


@pytest.mark.timeout(400)
def test_the_core_works_without_what_macos_lacks() -> None:
    command = [
        sys.executable,
        "-m",
        "pytest",
        "-q",
        "-n",
        "0",
        "-p",
        "tests.as_on_macos",
        "-p",
        "no:cacheprovider",
        *CORE,
    ]
    done = subprocess.run(command, capture_output=True, text=True, timeout=360, cwd=ROOT)
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


def test_a_drive_that_fails_to_sync_is_a_fault(monkeypatch: pytest.MonkeyPatch) -> None:
    def full_sync(descriptor: int, command: int) -> int:
        raise OSError(errno.EIO, os.strerror(errno.EIO))

    monkeypatch.setattr(fcntl, "F_FULLFSYNC", 51, raising=False)
    monkeypatch.setattr(fcntl, "fcntl", full_sync)
    with pytest.raises(OSError, match="Input/output"):
        files.sync_data(7)


def test_the_core_is_there() -> None:
    assert [path for path in CORE if not Path(ROOT, path).exists()] == []
