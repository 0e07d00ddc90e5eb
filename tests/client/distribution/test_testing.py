"""The pytest fixture for users' tests, as they run it: pytest in a process and a directory of its own."""

from __future__ import annotations

import re
import subprocess
import sys
import tomllib
from importlib.metadata import entry_points
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]

ASYNC = ("-o", "asyncio_mode=auto", "-o", "asyncio_default_fixture_loop_scope=function")


def run_pytest(directory: Path, source: str, *options: str) -> str:
    (directory / "test_users.py").write_text(source, encoding="utf-8")
    (directory / "pytest.ini").write_text("[pytest]\nfilterwarnings = error\n", encoding="utf-8")
    options = options or ("-p", "no:asyncio")
    command = [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", *options]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, cwd=directory)
    return done.stdout + done.stderr


def test_it_is_installed_as_a_plugin_of_pytest() -> None:
    declared = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    assert declared["project"]["entry-points"]["pytest11"] == {"cohort": "aiocohort.testing"}
    assert not [each for each in declared["project"]["dependencies"] if "pytest" in each]
    assert [each.value for each in entry_points(group="pytest11", name="cohort")] == ["aiocohort.testing"]


PLAIN_AND_ASYNC = """
import asyncio
from aiocohort import Admin, Consumer, Producer

SEEN = []

async def produce_and_consume(address):
    async with Admin(address) as admin:
        assert await admin.list_topics() == [], "every test has a coordinator of its own"
        await admin.create_topics({"orders": 1})
    async with Producer(address) as producer:
        await producer.send_and_wait("orders", b"42")
    async with Consumer("orders", bootstrap_servers=address, group_id="g", auto_offset_reset="earliest") as consumer:
        assert (await asyncio.wait_for(consumer.getone(), 10)).value == b"42"

def test_plain(cohort_coordinator):
    asyncio.run(produce_and_consume(cohort_coordinator.address))
    SEEN.append(cohort_coordinator.data_dir)

async def test_async(cohort_coordinator):
    await produce_and_consume(cohort_coordinator.address)
    SEEN.append(cohort_coordinator.data_dir)

def test_nothing_is_left_behind():
    import os
    assert len(set(SEEN)) == 2 and not any(map(os.path.exists, SEEN))
"""


def test_plain_and_async_tests_each_have_a_coordinator_of_their_own(tmp_path: Path) -> None:
    assert "3 passed" in run_pytest(tmp_path, PLAIN_AND_ASYNC, *ASYNC)


def test_a_kafka_for_tests_in_one_line(tmp_path: Path) -> None:
    source = """
from confluent_kafka import Consumer, Producer

def one(servers):
    producer = Producer({"bootstrap.servers": servers})
    producer.produce("orders", b"42")
    assert producer.flush(20) == 0
    settings = {"group.id": "g", "auto.offset.reset": "earliest", "session.timeout.ms": 1000}
    consumer = Consumer({"bootstrap.servers": servers, **settings})
    consumer.subscribe(["orders"])
    message = consumer.poll(20)
    assert message.value() == b"42"
    assert message.offset() == 0, "every test has a broker of its own"
    consumer.close()

def test_one(kafka_bootstrap_servers):
    one(kafka_bootstrap_servers)

def test_another(kafka_bootstrap_servers):
    one(kafka_bootstrap_servers)
"""
    assert "2 passed" in run_pytest(tmp_path, source)


def test_it_works_without_pytest_asyncio(tmp_path: Path) -> None:
    source = PLAIN_AND_ASYNC.replace("async def test_async", "async def untested").replace("== 2", "== 1")
    assert "2 passed" in run_pytest(tmp_path, source)


def test_settings_can_be_overridden_and_what_keeps_it_from_starting_is_told(tmp_path: Path) -> None:
    source = """
import pytest

@pytest.fixture
def cohort_settings():
    return {"no_such_setting": 1}

def test_it(cohort_coordinator):
    raise AssertionError("not reached")
"""
    output = run_pytest(tmp_path, source)
    assert "1 error" in output
    assert "no_such_setting" in output
    assert "ConfigurationError" in output


def test_a_project_that_does_not_ask_for_it_loads_nothing_of_the_daemon(tmp_path: Path) -> None:
    source = """
import sys

def test_it():
    assert "aiocohort.testing" in sys.modules
    assert "coordinator" not in sys.modules
    assert "structlog" not in sys.modules and "msgpack" not in sys.modules
"""
    assert "1 passed" in run_pytest(tmp_path, source)


def test_a_coordinator_starts_and_stops_within_milliseconds(tmp_path: Path) -> None:
    source = "import pytest\n@pytest.mark.parametrize('n', range(10))\ndef test_it(n, cohort_coordinator): pass\n"
    output = run_pytest(tmp_path, source, "-p", "no:asyncio", "--durations=0", "--durations-min=0", "-vv")
    assert "10 passed" in output
    setups = sorted(float(seconds) for seconds in re.findall(r"([\d.]+)s setup ", output))
    assert setups[len(setups) // 2] < 0.5, output


def test_the_plugin_is_loaded_here_too(pytestconfig: pytest.Config) -> None:
    assert pytestconfig.pluginmanager.has_plugin("cohort")
