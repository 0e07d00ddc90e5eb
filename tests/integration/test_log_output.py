"""The daemon goes on when its log cannot be written, and does not fill a disk with what broken clients do."""

from __future__ import annotations

import asyncio
import os
import re
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import pytest
import structlog

from client import Admin, Producer
from coordinator.config import Settings
from coordinator.daemon import Daemon
from coordinator.embedded import SYSTEM_ORIGINS
from coordinator.filesystem.files import FileStorage
from coordinator.log_output import RateLimitedLog


def free_port() -> int:
    with socket.socket() as listening:
        listening.bind(("127.0.0.1", 0))
        return int(listening.getsockname()[1])


@contextmanager
def daemon(tmp_path: Path, standard_error: int, *before: str) -> Iterator[tuple[subprocess.Popen[bytes], int]]:
    """A daemon whose standard error is ``standard_error``; SIGKILL at the end, if it has not ended."""
    port = free_port()
    command = [sys.executable, "-m", "coordinator", "--port", str(port), "--data-dir", str(tmp_path / "data")]
    process = subprocess.Popen([*before, *command], stderr=standard_error, stdout=standard_error)
    try:
        yield process, port
    finally:
        if process.poll() is None:
            process.kill()
        process.wait(30)


async def serves(port: int) -> None:
    """A topic can be created and written to, from the start of the daemon on."""
    async with asyncio.timeout(60):
        async with Admin(f"127.0.0.1:{port}") as admin:
            await admin.create_topics({f"t{os.urandom(4).hex()}": 1})
            topic = (await admin.list_topics())[0]
        async with Producer(f"127.0.0.1:{port}") as producer:
            await producer.send_and_wait(topic, b"x")


async def misbehave(port: int, times: int) -> None:
    """Connections that send what is no frame, each until the daemon has closed it."""
    for _ in range(times):
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(b"\xff" * 8)
        assert await asyncio.wait_for(reader.read(), 30) == b""
        writer.close()


async def test_a_reader_of_the_log_that_has_stopped_stops_nobody_else(tmp_path: Path) -> None:
    reading, writing = os.pipe()
    try:
        with daemon(tmp_path, writing) as (process, port):
            await serves(port)
            os.set_blocking(writing, False)
            try:
                while True:
                    os.write(writing, b"." * 512)
            except BlockingIOError:
                os.set_blocking(writing, True)
            await misbehave(port, 400)
            await serves(port)
            process.send_signal(signal.SIGTERM)
            assert await asyncio.to_thread(process.wait, 30) == 0
    finally:
        os.close(reading)
        os.close(writing)


@pytest.mark.parametrize("kind", ["without a reader", "on a full disk", "closed"])
async def test_a_log_that_cannot_be_written_is_no_reason_to_stop(tmp_path: Path, kind: str) -> None:
    reading, writing = os.pipe()
    os.close(reading)
    full = os.open("/dev/full", os.O_WRONLY)
    before = ("sh", "-c", 'exec "$@" 0<&- 1>&- 2>&-', "sh") if kind == "closed" else ()
    try:
        with daemon(tmp_path, full if kind == "on a full disk" else writing, *before) as (process, port):
            await serves(port)
            await misbehave(port, 30)
            await serves(port)
            process.send_signal(signal.SIGTERM)
            assert await asyncio.to_thread(process.wait, 30) == 0
    finally:
        os.close(writing)
        os.close(full)


async def test_malformed_connections_are_logged_at_a_bounded_rate_and_counted(tmp_path: Path) -> None:
    log = tmp_path / "log"
    with log.open("wb") as file, daemon(tmp_path, file.fileno()) as (process, port):
        await serves(port)
        await misbehave(port, 600)
        process.send_signal(signal.SIGTERM)
        assert await asyncio.to_thread(process.wait, 30) == 0
    text = re.sub(r"\x1b\[[0-9;]*m", "", log.read_text())
    lines = [line for line in text.splitlines() if "connection_closed" in line]
    assert 20 <= len(lines) < 300, "20 at once, then one a second"
    assert f"listening on 127.0.0.1:{port}" in text


async def test_a_daemon_that_cannot_go_on_acts_before_it_logs(tmp_path: Path) -> None:
    """Whatever becomes of its last words: nothing may be answered any more."""
    seen: list[bool] = []

    def processor(logger: Any, method: str, event: Any) -> Any:
        if method == "critical":
            seen.append(failing.failed.done())
        raise OSError("the log is gone")

    failing = Daemon(
        Settings(port=0, data_dir=str(tmp_path / "data")), FileStorage(str(tmp_path / "data")), SYSTEM_ORIGINS
    )
    await failing.start()
    reader, writer = await asyncio.open_connection(*failing.address)
    structlog.configure(processors=[processor])
    try:
        failing.fail("a test says so")
        assert seen == [True]
        assert failing.failed.result() == "a test says so"
        with suppress(ConnectionError):  # it was reset, or ended without an answer
            assert await asyncio.wait_for(reader.read(), 10) == b""
    finally:
        structlog.reset_defaults()
        writer.close()
        await failing.stop()


def test_warnings_come_at_a_bounded_rate_and_none_is_forgotten() -> None:
    now = [100.0]
    told: list[dict[str, Any]] = []

    def processor(logger: Any, method: str, event: Any) -> Any:
        told.append(dict(event))
        raise structlog.DropEvent

    structlog.configure(processors=[processor])
    try:
        warnings = RateLimitedLog(lambda: now[0], burst=3, pause_s=1.0)
        for number in range(10):
            warnings.tell("closed", number=number)
        assert [event["number"] for event in told] == [0, 1, 2]
        warnings.sum_up()
        assert len(told) == 3
        now[0] += 1
        warnings.tell("closed", number=10)
        assert told[-1] == {"event": "closed", "number": 10, "others_not_logged": 7}
        warnings.tell("closed", number=11)
        now[0] += 1
        warnings.sum_up()
        assert told[-1]["connections"] == 1
        now[0] += 3_600
        for number in range(10):
            warnings.tell("closed", number=number)
        assert len(told) == 8, "an hour of silence allows no more than the first burst"
    finally:
        structlog.reset_defaults()


def run(*options: str, before: tuple[str, ...] = ()) -> subprocess.CompletedProcess[str]:
    command = [*before, sys.executable, "-m", "coordinator", *options]
    return subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)


@pytest.mark.parametrize("host", ["a..b", "x" * 64 + ".example", "a" * 300])
def test_a_host_that_is_no_name_is_an_error_of_one_line(tmp_path: Path, host: str) -> None:
    done = run("--host", host, "--port", "0", "--data-dir", str(tmp_path / "data"))
    assert done.returncode == 1
    last = done.stderr.splitlines()[-1]
    assert last.startswith("cohortd: cannot listen on ")
    assert "Choose another host or port" in last
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize("files", [16, 64])
def test_too_few_open_files_are_refused_at_the_start(tmp_path: Path, files: int) -> None:
    limited = ("sh", "-c", f'ulimit -n {files} && exec "$@"', "sh")
    done = run("--port", "0", "--data-dir", str(tmp_path / "data"), before=limited)
    assert done.returncode == 2
    assert f"cohortd: only {files} files may be open, and a daemon needs 224 at least" in done.stderr
    assert "Traceback" not in done.stderr
    assert not (tmp_path / "data").exists()
