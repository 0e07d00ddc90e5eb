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
