"""SIGKILL at random instants of a query that is exactly once: after each, outputs and offsets are the same records."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from random import Random
from time import perf_counter, sleep

import pytest

from tests.daemon_process import DaemonProcess
from tests.integration.cohort_command import ROOT
from tests.integration.spark.calls import prepare
from tests.integration.spark.program import BATCH
from tests.integration.spark.test_exactly_once import committed, stored

pytestmark = [pytest.mark.spark, pytest.mark.timeout(900)]

RECORDS = 400 * BATCH
VICTIMS = ("driver", "daemon", "driver and daemon", "driver")
"""What is killed, one after the other. The daemon is started again at once."""
_START_S = 120
_MOST_S = 2.0
"""How long after a batch was committed the kill comes at the latest."""


@contextmanager
def driver(address: str, directory: Path) -> Iterator[subprocess.Popen[bytes]]:
    """A driver and all its processes, which are killed at the end."""
    program = [sys.executable, "-m", "tests.integration.spark.program"]
    with (directory / "driver.log").open("wb") as log:
        process = subprocess.Popen(
            [*program, address, str(directory), "local[2]", "exactly-once", "none"],
            cwd=ROOT,
            start_new_session=True,
            stdout=log,
            stderr=log,
        )
    try:
        yield process
        assert process.poll() is None, (directory / "driver.log").read_text()[-3000:]
    finally:
        os.killpg(process.pid, signal.SIGKILL)
        process.wait(30)


def test_outputs_and_offsets_are_the_same_records_after_every_kill(tmp_path: Path) -> None:
    random, before = Random(7), 0
    with DaemonProcess(tmp_path / "data") as daemon:
        prepare(daemon.address, {"t": 2, "copying-out": 2}, {"t": RECORDS})
        for victim in VICTIMS:
            with driver(daemon.address, tmp_path) as process:
                began = perf_counter()
                while committed(daemon.address, "copying") <= before:
                    assert process.poll() is None, (tmp_path / "driver.log").read_text()[-3000:]
                    assert perf_counter() - began < _START_S, f"no batch was committed within {_START_S} s"
                    sleep(0.1)
                sleep(_MOST_S * random.random())
                if "daemon" in victim:
                    daemon.kill()
                if victim == "daemon":
                    daemon.start()
                    sleep(_MOST_S)
            if victim == "driver and daemon":
                daemon.start()
            seen, offsets = stored(daemon.address, "copying-out"), committed(daemon.address, "copying")
            assert len(seen) == len(set(seen)) == offsets > before, victim
            before = offsets
