"""``cohort`` interrupted at the worst moment: a reader that does not read, a daemon that does not answer."""

from __future__ import annotations

import array
import fcntl
import os
import signal
import subprocess
import termios
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.daemon_process import DaemonProcess
from tests.integration.cohort_command import ROOT, arguments, environment, objects, output

PROMPTLY_S = 8


@pytest.fixture
def daemon(tmp_path: Path) -> Iterator[DaemonProcess]:
    with DaemonProcess(tmp_path / "data") as running:
        yield running


def wait_for_full_pipe(reader: int) -> None:
    """Returns when a full pipe stays as it is."""
    before, deadline = -1, time.monotonic() + 20
    while (held := pipe_bytes(reader)) == 0 or held != before:
        assert time.monotonic() < deadline
        before = held
        time.sleep(0.5)


def pipe_bytes(reader: int) -> int:
    held = array.array("i", [0])
    fcntl.ioctl(reader, termios.FIONREAD, held)
    return held[0]


@pytest.mark.parametrize("json", [False, True])
@pytest.mark.parametrize("unbuffered", ["", "1"])
def test_a_consumer_whose_reader_is_stuck_leaves_and_commits_what_the_reader_can_have(
    daemon: DaemonProcess, unbuffered: str, json: bool
) -> None:
    output("topics", "create", "t", address=daemon.address)
    output("produce", "t", address=daemon.address, stdin=b"".join(b"%09d\n" % number for number in range(100_000)))
    reader, descriptor = os.pipe()
    with subprocess.Popen(
        arguments(
            "consume", "t", "--group", "g", "--from-beginning", *(["--json"] if json else []), address=daemon.address
        ),
        stdout=descriptor,
        cwd=ROOT,
        env=environment() | {"PYTHONUNBUFFERED": unbuffered},
    ) as consuming:
        os.close(descriptor)
        wait_for_full_pipe(reader)
        consuming.send_signal(signal.SIGTERM)
        try:
            assert consuming.wait(PROMPTLY_S) == 0
        finally:
            consuming.kill()
    content = b""
    while piece := os.read(reader, 1 << 20):
        content += piece
    os.close(reader)
    (described,) = objects("groups", "describe", "g", address=daemon.address)
    assert (described["state"], described["members"]) == ("Empty", [])
    assert described["offsets"][0]["committed"] == content.count(b"\n") > 100


@pytest.mark.parametrize("group", [(), ("--group", "g")])
def test_a_consumer_whose_reader_has_enough_ends_though_nothing_more_comes(
    daemon: DaemonProcess, group: tuple[str, ...]
) -> None:
    output("topics", "create", "t", address=daemon.address)
    output("produce", "t", address=daemon.address, stdin=b"first\nsecond\n")
    reader, descriptor = os.pipe()
    with subprocess.Popen(
        arguments("consume", "t", "--from-beginning", *group, address=daemon.address),
        stdout=descriptor,
        stderr=subprocess.PIPE,
        cwd=ROOT,
        env=environment(),
    ) as consuming:
        os.close(descriptor)
        assert os.read(reader, 6) == b"first\n"
        os.close(reader)
        try:
            assert consuming.wait(PROMPTLY_S) == 0
        finally:
            consuming.kill()
        assert consuming.stderr is not None
        assert consuming.stderr.read() == b""
    if group:
        (described,) = objects("groups", "describe", "g", address=daemon.address)
        assert (described["state"], described["members"]) == ("Empty", [])


def test_a_producer_whose_daemon_is_stuck_says_at_once_what_was_acknowledged(daemon: DaemonProcess) -> None:
    output("topics", "create", "t", address=daemon.address)
    with subprocess.Popen(
        arguments("produce", "t", address=daemon.address),
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        cwd=ROOT,
        env=environment(),
    ) as producing:
        assert producing.stdin is not None
        assert producing.stdout is not None
        producing.stdin.write(b"line\n" * 1000)
        producing.stdin.flush()
        deadline = time.monotonic() + 20
        while output("consume", "t", "--from-beginning", "--timeout", "1", address=daemon.address).count("\n") < 1000:
            assert time.monotonic() < deadline
        daemon.send(signal.SIGSTOP)
        try:
            producing.stdin.write(b"lost\n" * 1000)
            producing.stdin.flush()
            time.sleep(0.5)  # until it has read them
            started_at = time.monotonic()
            producing.send_signal(signal.SIGINT)
            assert (
                producing.stdout.readline() == b"1,000 records acknowledged by topic t: the first ones of the input\n"
            )
            assert time.monotonic() < started_at + PROMPTLY_S
            assert producing.wait(PROMPTLY_S) == 1
        finally:
            daemon.send(signal.SIGCONT)
            producing.kill()
