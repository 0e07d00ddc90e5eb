"""Kafka's own Java clients, Streams and Connect against a daemon.

Left out where there is no JDK or no Maven, or no network to get jars by.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.daemon_process import DaemonProcess
from tests.kafka.java_programs import prepare, run
from tests.kafka.suites.java import PROGRAMS
from tests.kafka.suites.suite import MissingError

pytestmark = [pytest.mark.kafka_suites, pytest.mark.timeout(900)]  # jars are downloaded first, once


@pytest.mark.parametrize(("program", "task", "version"), PROGRAMS)
def test_a_program_of_kafka_s_java_clients_passes(tmp_path: Path, program: str, task: str, version: str) -> None:
    try:
        jars = prepare(version)
    except MissingError as error:
        pytest.skip(f"Kafka's Java clients cannot be run here: {error}")
    with DaemonProcess(tmp_path / "data", "--kafka-port", "-1", "--flush", "os") as daemon:
        said = run(jars, program, task, daemon.kafka_address, tmp_path)
    assert "Connect copied 400 lines" in said if program == "Connect" else f"{task} passed" in said
    assert not [line for line in daemon.output if "Traceback" in line or "request_failed" in line]
