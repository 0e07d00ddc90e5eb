"""A cluster of two real workers: tasks that fail, executors that are killed, speculative copies. At least once, in full."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from time import perf_counter, sleep

import pytest

from client.bench.spark_workers import Workers
from tests.daemon_process import DaemonProcess
from tests.integration.cohort_command import ROOT
from tests.integration.spark.calls import administer, numbers, prepare, read
from tests.integration.spark.standalone import executor_of

pytestmark = [pytest.mark.spark, pytest.mark.timeout(600)]

RECORDS = 1000
BATCH = 400


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Workers]:
    with Workers(tmp_path_factory.mktemp("cluster")) as running:
        yield running


@pytest.mark.parametrize("trouble", ["fail", "kill", "dawdle"])
def test_everything_arrives_whatever_becomes_of_a_task(cluster: Workers, tmp_path: Path, trouble: str) -> None:
    """``fail``: it raises when its rows are handed on. ``kill``: its executor is. ``dawdle``: a copy overtakes it."""
    with DaemonProcess(tmp_path / "data") as daemon:
        prepare(daemon.address, {"t": 2, "out": 2}, {"t": RECORDS})
        (tmp_path / "trouble").write_text(trouble)
        command = [
            sys.executable,
            "-m",
            "tests.integration.spark.program",
            daemon.address,
            str(tmp_path),
            cluster.master,
        ]
        with (tmp_path / "driver.log").open("wb") as log:
            driver = subprocess.Popen([*command, "never"], stdout=log, stderr=log, cwd=ROOT, start_new_session=True)
        try:
            if trouble == "kill":
                _wait_for(tmp_path / "pid", driver)
                (tmp_path / "trouble").unlink()
                os.kill(executor_of(cluster, int((tmp_path / "pid").read_text())), signal.SIGKILL)
            if trouble == "dawdle":
                _wait_for(tmp_path / "pid", driver)
                (tmp_path / "trouble").unlink()
            assert driver.wait(200) == 0, (tmp_path / "driver.log").read_text()[-3000:]
        finally:
            if driver.poll() is None:
                os.killpg(driver.pid, signal.SIGKILL)
                driver.wait(30)
        copied = numbers(read(daemon.address, subscribe="out"))
        assert sorted(set(copied)) == list(range(RECORDS))
        assert len(copied) <= RECORDS + BATCH, "a task that is tried again writes its own rows again, and no others"
        offsets = administer(daemon.address, lambda admin: admin.list_offsets("copying"))
        assert sum(offset.offset for offset in offsets.values()) == RECORDS


def _wait_for(path: Path, driver: subprocess.Popen[bytes]) -> None:
    began = perf_counter()
    while not path.exists() or not path.read_text():
        assert driver.poll() is None, "the driver ended before"
        assert perf_counter() - began < 300, f"{path} did not come"
        sleep(0.1)
