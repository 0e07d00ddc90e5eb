"""A cluster of two real workers: tasks that fail, executors that are killed, speculative copies. All arrives."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path
from time import perf_counter, sleep

import pytest

from client.bench.spark_workers import Workers
from tests.daemon_process import DaemonProcess
from tests.integration.cohort_command import ROOT
from tests.integration.spark.calls import administer, numbers, prepare, read
from tests.integration.spark.standalone import executor_of

pytestmark = [pytest.mark.spark, pytest.mark.timeout(900)]

RECORDS = 1000
TROUBLES = ("fail", "dawdle", "kill")


def test_everything_arrives_whatever_becomes_of_a_task(tmp_path: Path) -> None:
    """At least once; ``test_failure_table`` has exactly once.

    ``fail``: it raises when its rows are handed on. ``dawdle``: a copy overtakes it. ``kill``: its executor is killed.
    """
    directory = tmp_path / "workers"
    directory.mkdir()
    with DaemonProcess(tmp_path / "data") as daemon, Workers(directory) as workers:
        prepare(daemon.address, {"t": 2, **{f"{trouble}-out": 2 for trouble in TROUBLES}}, {"t": RECORDS})
        arguments = [daemon.address, str(tmp_path), workers.master, *TROUBLES]
        with (tmp_path / "driver.log").open("wb") as log:
            driver = subprocess.Popen(
                [sys.executable, "-m", "tests.integration.spark.program", *arguments],
                stdout=log,
                stderr=log,
                cwd=ROOT,
                start_new_session=True,
            )
        try:
            _wait_for(tmp_path / "dawdle.pid", driver)
            (tmp_path / "dawdle").unlink()
            _wait_for(tmp_path / "kill.pid", driver)
            (tmp_path / "kill").unlink()
            os.kill(executor_of(workers, int((tmp_path / "kill.pid").read_text())), signal.SIGKILL)
            assert driver.wait(400) == 0, (tmp_path / "driver.log").read_text()[-3000:]
        finally:
            if driver.poll() is None:
                os.killpg(driver.pid, signal.SIGKILL)
                driver.wait(30)
        for trouble in TROUBLES:
            copied = numbers(read(daemon.address, subscribe=f"{trouble}-out"))
            assert sorted(set(copied)) == list(range(RECORDS)), trouble
            assert len(copied) <= 2 * RECORDS, f"{trouble}: an attempt writes its rows once"
            assert committed(daemon.address, trouble) == RECORDS, trouble


def committed(address: str, group: str) -> int:
    found = administer(address, lambda admin: admin.list_offsets(group))
    return sum(offset.offset for offset in found.values())


def _wait_for(path: Path, driver: subprocess.Popen[bytes]) -> None:
    began = perf_counter()
    while not path.exists() or not path.read_text():
        assert driver.poll() is None, (path.parent / "driver.log").read_text()[-3000:]
        assert perf_counter() - began < 400, f"{path} did not come"
        sleep(0.1)
