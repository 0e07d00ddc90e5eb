"""SIGKILL of the driver before, in and after a commit: the next one goes on, and nothing is lost."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tests.daemon_process import DaemonProcess
from tests.integration.cohort_command import ROOT
from tests.integration.spark.calls import administer, numbers, prepare, read

pytestmark = [pytest.mark.spark, pytest.mark.timeout(600)]

RECORDS = 2000


def copying(address: str, directory: Path, moment: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "tests.integration.spark.program", address, str(directory), "local[2]", moment]
    return subprocess.run(command, capture_output=True, text=True, timeout=280, cwd=ROOT)


@pytest.mark.parametrize("moment", ["before", "in", "after"])
def test_a_driver_that_is_killed_loses_nothing_and_its_successor_has_the_group_at_once(
    tmp_path: Path, moment: str
) -> None:
    with DaemonProcess(tmp_path / "data") as daemon:
        prepare(daemon.address, {"t": 2, "out": 2}, {"t": RECORDS})
        killed = copying(daemon.address, tmp_path, moment)
        assert killed.returncode == -9, killed.stderr[-2000:]
        again = copying(daemon.address, tmp_path, "never")
        assert again.returncode == 0, again.stderr[-2000:]
        assert "done" in again.stdout
        copied = numbers(read(daemon.address, subscribe="out"))
        assert sorted(set(copied)) == list(range(RECORDS))
        assert len(copied) - RECORDS <= 400, "one batch at most is written again"
        offsets = administer(daemon.address, lambda admin: admin.list_offsets("copying"))
        assert sum(offset.offset for offset in offsets.values()) == RECORDS
