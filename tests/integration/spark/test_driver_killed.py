"""SIGKILL of the driver before, in and after a commit: the next one goes on, and nothing is lost."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tests.daemon_process import DaemonProcess
from tests.integration.cohort_command import ROOT
from tests.integration.spark.calls import administer, numbers, prepare, read
from tests.integration.spark.program import BATCH
from tests.integration.spark.violent import MOMENTS

pytestmark = [pytest.mark.spark, pytest.mark.timeout(900)]

RECORDS = 12 * BATCH


def copying(address: str, directory: Path, moment: str) -> subprocess.CompletedProcess[str]:
    program = [sys.executable, "-m", "tests.integration.spark.program"]
    command = [*program, address, str(directory), "local[2]", moment]
    return subprocess.run(command, capture_output=True, text=True, timeout=800, cwd=ROOT)


def committed(address: str) -> int:
    return sum(offset.offset for offset in administer(address, lambda admin: admin.list_offsets("copying")).values())


def test_drivers_that_are_killed_lose_nothing_and_their_successors_have_the_group_at_once(tmp_path: Path) -> None:
    """At least once; ``test_failure_table`` has exactly once."""
    with DaemonProcess(tmp_path / "data") as daemon:
        prepare(daemon.address, {"t": 2, "copying-out": 2}, {"t": RECORDS})
        for moment in MOMENTS:
            killed = copying(daemon.address, tmp_path, moment)
            assert killed.returncode == -9, (moment, killed.stderr[-2000:])
        last = copying(daemon.address, tmp_path, "none")
        assert last.returncode == 0, last.stderr[-2000:]
        assert last.stdout.split() == ["none"]
        copied = numbers(read(daemon.address, subscribe="copying-out"))
        assert sorted(set(copied)) == list(range(RECORDS))
        assert len(copied) - RECORDS <= 2 * (BATCH + 2), (
            "rows that were written and not committed are written again, no others"
        )
        assert committed(daemon.address) == RECORDS
