"""``cohortd --workers N``: processes that share partitions and groups, are kept running, and end with their parent."""

from __future__ import annotations

import asyncio
import os
import re
import signal
import socket
import subprocess
import sys
import threading
import time
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from client.admin import Admin
from client.consumer import Consumer
from client.producer.producer import Producer
from coordinator.config import ConfigurationError, Settings
from coordinator.workers import as_arguments, check_alone, check_directory, settings_of_workers
from tests.daemon_process import DaemonProcess

WITHIN_S = 60.0
_STARTED = re.compile(r"worker_started +pid=(\d+) worker=(\d+)")


@contextmanager
def two_workers(directory: Path, *options: str) -> Iterator[DaemonProcess]:
    daemon = DaemonProcess(directory, "--workers", "2", "--node-session-ms", "2000", *options, "--log-level", "info")
    try:
        yield daemon.start()
    finally:
        daemon.terminate()


def pids(daemon: DaemonProcess) -> dict[int, int]:
    """The process that each worker has now."""
    found = (_STARTED.search(line) for line in list(daemon.output))
    return {int(match[2]): int(match[1]) for match in found if match}


async def ended(pid: int) -> None:
    async with asyncio.timeout(WITHIN_S):
        while Path(f"/proc/{pid}").exists():
            await asyncio.sleep(0.05)


async def test_topics_and_coordinators_are_shared_out_and_found_from_one_address(tmp_path: Path) -> None:
    with two_workers(tmp_path / "data") as daemon:
        async with Admin(bootstrap_servers=daemon.address) as admin:
            await admin.create_topics({"orders": 4})
            leaders = {
                each.partition: each.leader for each in (await admin.describe_topics("orders"))["orders"].partitions
            }
            assert sorted(leaders.values()) == [0, 0, 1, 1]
        async with Producer(bootstrap_servers=daemon.address) as producer:
            for number in range(40):
                await producer.send_and_wait("orders", b"%d" % number, partition=number % 4)
        read: set[bytes] = set()
        for group in ("billing", "shipping", "audit"):
            async with Consumer(
                "orders", bootstrap_servers=daemon.address, group_id=group, auto_offset_reset="earliest"
            ) as consumer:
                async with asyncio.timeout(WITHIN_S):
                    while len(read) < 40:
                        read |= {
                            each.value for part in (await consumer.getmany(timeout_ms=500)).values() for each in part
                        }
                await consumer.commit()
            read = set()


@pytest.mark.parametrize("victim", [0, 1])
async def test_a_worker_that_is_killed_is_started_again_and_nothing_is_lost(tmp_path: Path, victim: int) -> None:
    with two_workers(tmp_path / "data") as daemon:
        async with Admin(bootstrap_servers=daemon.address) as admin:
            await admin.create_topics({"orders": 4})
        before = pids(daemon)
        acknowledged = []
        async with Producer(bootstrap_servers=daemon.address, delivery_timeout_ms=60_000) as producer:
            for number in range(120):
                if number == 40:
                    os.kill(before[victim], signal.SIGKILL)
                await producer.send_and_wait("orders", b"%d" % number, partition=number % 4)
                acknowledged.append(b"%d" % number)
        assert pids(daemon)[victim] != before[victim]
        assert pids(daemon)[1 - victim] == before[1 - victim]
        async with Consumer(bootstrap_servers=daemon.address, auto_offset_reset="earliest") as consumer:
            consumer.subscribe(["orders"])
            read: list[bytes] = []
            async with asyncio.timeout(WITHIN_S):
                while len(read) < len(acknowledged):
                    for records in (await consumer.getmany(timeout_ms=500)).values():
                        read += [record.value for record in records]
        assert sorted(read) == sorted(acknowledged)


async def test_a_worker_that_is_started_again_has_the_http_port_that_it_had(tmp_path: Path) -> None:
    with two_workers(tmp_path / "data", "--http", "127.0.0.1:0") as daemon:
        assert sum(line.startswith("serving the page") for line in daemon.output) == 1
        said = next(line for line in daemon.output if line.startswith("serving the page"))
        before = pids(daemon)[0]
        os.kill(before, signal.SIGKILL)
        await ended(before)
        async with asyncio.timeout(WITHIN_S):
            while await asyncio.to_thread(health, said.split()[-1]) != 200:
                await asyncio.sleep(0.1)
        assert pids(daemon)[0] != before


def health(address: str) -> int:
    """The status of the health check, 0 when nothing answers."""
    try:
        with urllib.request.urlopen(f"{address}/healthz", timeout=5) as answer:
            return int(answer.status)
    except OSError:
        return 0


async def test_no_other_program_gets_the_port_of_the_metadata_while_its_worker_is_away(tmp_path: Path) -> None:
    with two_workers(tmp_path / "data") as daemon:
        served = (re.search(r"metadata_served .*port=(\d+)", line) for line in daemon.output)
        port = next(int(match[1]) for match in served if match)
        before = pids(daemon)[0]
        os.kill(before, signal.SIGKILL)
        await ended(before)
        with socket.socket() as other:
            other.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            with pytest.raises(OSError, match="in use"):
                other.bind(("127.0.0.1", port))
        async with Admin(bootstrap_servers=daemon.address) as admin, asyncio.timeout(WITHIN_S):
            await admin.create_topics({"orders": 2})
        assert pids(daemon)[0] != before


@contextmanager
def killed_at_their_start(daemon: DaemonProcess, number: int, times: int) -> Iterator[list[int]]:
    """The processes of a worker, each of which gets SIGKILL as soon as it is told of, the first ``times`` of them."""
    killed: list[int] = []
    over = threading.Event()

    def watch() -> None:
        while len(killed) < times and not over.wait(0.002):
            for line in list(daemon.output):
                match = _STARTED.search(line)
                if match and int(match[2]) == number and int(match[1]) not in killed and len(killed) < times:
                    os.kill(int(match[1]), signal.SIGKILL)
                    killed.append(int(match[1]))

    watching = threading.Thread(target=watch)
    watching.start()
    try:
        yield killed
    finally:
        over.set()
        watching.join()


@pytest.mark.parametrize("number", [0, 1])
def test_a_worker_that_is_killed_while_it_starts_is_told_of_and_started_again(tmp_path: Path, number: int) -> None:
    daemon = DaemonProcess(tmp_path / "data", "--workers", "2", "--log-level", "info")
    with killed_at_their_start(daemon, number, 2) as killed:
        daemon.start()
    try:
        assert len(killed) == 2
        told = [line for line in daemon.output if "worker_ended" in line]
        assert len(told) == 2
        assert all(f"worker={number}" in line and "status=-9" in line for line in told)
    finally:
        assert daemon.terminate() == 0


@pytest.mark.parametrize("after_s", [0.0, 0.4, 0.8])
def test_a_start_outlasts_the_end_of_the_worker_that_has_the_metadata(tmp_path: Path, after_s: float) -> None:
    """The second worker, which was about to register, may end with its first one: both are started again."""
    daemon = DaemonProcess(tmp_path / "data", "--workers", "2", "--log-level", "info")

    def kill_the_first() -> None:
        until_s = time.monotonic() + WITHIN_S
        while 1 not in pids(daemon) and time.monotonic() < until_s:
            time.sleep(0.002)
        time.sleep(after_s)
        os.kill(pids(daemon)[0], signal.SIGKILL)

    killer = threading.Thread(target=kill_the_first)
    killer.start()
    try:
        daemon.start()
        killer.join()
        until_s = time.monotonic() + WITHIN_S
        while not any("worker_ended" in line and "worker=0" in line for line in list(daemon.output)):
            assert time.monotonic() < until_s
            time.sleep(0.01)
    finally:
        assert daemon.terminate() == 0


def test_a_stop_does_not_leave_a_worker_without_the_metadata_that_it_hands_over_with(tmp_path: Path) -> None:
    """The first worker ends at the moment of the stop: it is started again for as long as the second one stops."""
    with two_workers(tmp_path / "data", "--controlled-shutdown-ms", "600000") as daemon:
        daemon.send(signal.SIGSTOP)
        os.kill(pids(daemon)[0], signal.SIGKILL)
        daemon.send(signal.SIGTERM)
        daemon.send(signal.SIGCONT)
        assert daemon.wait() == 0


def test_a_worker_that_is_killed_at_each_start_ends_the_parent_with_words(tmp_path: Path) -> None:
    daemon = DaemonProcess(tmp_path / "data", "--workers", "2", "--log-level", "info")
    with (
        killed_at_their_start(daemon, 0, 100) as killed,
        pytest.raises(
            AssertionError, match=r"(?s)ended with 1: .*worker 0 was ended by SIGKILL before it served, 5 times"
        ),
    ):
        daemon.start()
    assert len(killed) == 5


async def test_workers_stop_with_their_parent_also_when_it_is_killed(tmp_path: Path) -> None:
    daemon = DaemonProcess(tmp_path / "data", "--workers", "2", "--log-level", "info").start()
    workers = pids(daemon).values()
    assert len(workers) == 2
    assert daemon.terminate() == 0
    assert not any(Path(f"/proc/{pid}").exists() for pid in workers)
    daemon = DaemonProcess(tmp_path / "data", "--workers", "2", "--log-level", "info").start()
    workers = pids(daemon).values()
    daemon.kill()
    for pid in workers:
        await ended(pid)


def test_a_worker_that_cannot_serve_ends_the_start_with_its_reason(tmp_path: Path) -> None:
    (tmp_path / "data").mkdir()
    (tmp_path / "data" / "workers").write_text("")
    done = subprocess.run(
        [sys.executable, "-m", "coordinator", "--workers", "2", "--port", "0", "--data-dir", str(tmp_path / "data")],
        capture_output=True,
        text=True,
        timeout=WITHIN_S,
    )
    assert done.returncode == 1
    assert "Traceback" not in done.stderr
    assert "cannot serve" in done.stderr
    assert "ended with status 1 before it served" in done.stderr


def test_fewer_workers_than_have_partitions_are_refused(tmp_path: Path) -> None:
    (tmp_path / "workers" / "2").mkdir(parents=True)
    settings = Settings(data_dir=str(tmp_path))
    with pytest.raises(ConfigurationError, match="start with --workers 3"):
        check_directory(settings)
    check_directory(Settings(data_dir=str(tmp_path), workers=3))
    check_directory(Settings(data_dir=str(tmp_path / "none")))


def test_workers_are_a_cluster_of_their_own() -> None:
    for other in ({"metadata": "etcd://h:2379/c"}, {"serve_metadata": "127.0.0.1:1"}, {"node_id": 3}):
        with pytest.raises(ConfigurationError, match="a cluster of their own"):
            check_alone(Settings(workers=2, **other))


def test_ports_count_up_from_those_of_the_first_worker() -> None:
    given = Settings(workers=3, port=7337, kafka_port=9092, http="[::1]:7338", data_dir="d").check()
    first, second, third = settings_of_workers(given, 7400)
    assert (first.port, second.port, third.port) == (7337, 7338, 7339)
    assert (first.kafka_port, third.kafka_port, third.http) == (9092, 9094, "[::1]:7340")
    assert (first.serve_metadata, second.metadata) == ("127.0.0.1:7400", "cohort://127.0.0.1:7400/workers")
    assert (first.data_dir, second.data_dir) == ("d", "d/workers/1")
    assert {each.offsets_replication_factor for each in (first, second, third)} == {1}
    free = settings_of_workers(Settings(workers=2, port=0, kafka_port=-1), 7400)
    assert [(each.port, each.kafka_port) for each in free] == [(0, -1), (0, -1)]
    assert as_arguments(free[0]) == [
        "--port=0", "--workers=2", "--node-id=0", "--serve-metadata=127.0.0.1:7400", "--offsets-replication-factor=1",
        "--kafka-port=-1",
    ]  # fmt: skip
