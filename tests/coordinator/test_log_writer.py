"""The thread behind standard error: no line waits or raises, what is lost is counted and told, order and bytes are kept."""

from __future__ import annotations

import errno
import fcntl
import os
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import suppress
from typing import Any

import pytest
import structlog

from coordinator.log_output import Untold
from coordinator.log_writer import LogStream, LogWriter


@pytest.fixture
def pipe() -> Iterator[tuple[int, int]]:
    reading, writing = os.pipe()
    yield reading, writing
    for descriptor in (reading, writing):
        with suppress(OSError):  # closed by the test
            os.close(descriptor)


def read_all(descriptor: int, end: bytes) -> bytes:
    """Everything up to ``end``."""
    data = b""
    while end not in data:
        data += os.read(descriptor, 65536)
    return data


def test_lines_come_out_as_they_went_in(pipe: tuple[int, int]) -> None:
    reading, writing = pipe
    writer = LogWriter(writing)
    for number in range(1_000):
        writer.write(f"line {number} \N{SNOWMAN} \ud800\n")
    data = read_all(reading, b"line 999 \xe2\x98\x83 \\ud800\n")
    assert data.decode().splitlines() == [f"line {number} \N{SNOWMAN} \\ud800" for number in range(1_000)]
    assert writer.flush(10)


def test_a_reader_that_stopped_costs_lines_and_no_time_and_is_told_how_many(pipe: tuple[int, int]) -> None:
    reading, writing = pipe
    os.write(writing, b"\n" * fcntl.fcntl(writing, fcntl.F_SETPIPE_SZ, 4096))
    writer = LogWriter(writing, max_bytes=1_000)
    line = "x" * 99 + "\n"
    written = 5_000
    done = threading.Event()

    def write() -> None:
        for _ in range(written):
            writer.write(line)
        done.set()

    threading.Thread(target=write, daemon=True).start()
    assert done.wait(20), "nothing is read, and yet nobody waits"
    assert not writer.flush(0.01)

    def end() -> None:
        writer.flush(20)
        writer.write("the end\n")

    threading.Thread(target=end, daemon=True).start()
    lines = read_all(reading, b"the end\n").decode().lstrip("\n").splitlines()
    whole = [each for each in lines if each == line.strip()]
    told = [int(each.split()[0]) for each in lines if "were dropped" in each]
    assert len(whole) + sum(told) == written
    assert len(whole) < written
    assert lines[-1] == "the end"
    assert len(whole) + len(told) + 1 == len(lines), "and no line is broken"


def test_an_output_that_fails_is_tried_again_and_the_gap_is_told(pipe: tuple[int, int]) -> None:
    reading, writing = pipe
    kept = os.dup(writing)
    full = os.open("/dev/full", os.O_WRONLY)
    try:
        writer = LogWriter(writing)
        writer.write("before\n")
        assert writer.flush(10)
        os.dup2(full, writing)
        for number in range(7):
            writer.write(f"lost {number}\n")
        assert writer.flush(10)
        os.dup2(kept, writing)
        writer.write("after\n")
        assert writer.flush(10)
        assert read_all(reading, b"after\n") == (
            b"before\n7 log lines were dropped here: this output could not be written\nafter\n"
        )
    finally:
        os.close(kept)
        os.close(full)


def test_without_a_reader_nothing_is_raised(pipe: tuple[int, int]) -> None:
    reading, writing = pipe
    os.close(reading)
    writer = LogWriter(writing)
    for _ in range(100):
        writer.write("into the void\n")
    assert writer.flush(10)


def test_a_descriptor_that_does_not_block_is_waited_for(pipe: tuple[int, int]) -> None:
    reading, writing = pipe
    fcntl.fcntl(writing, fcntl.F_SETFL, fcntl.fcntl(writing, fcntl.F_GETFL) | os.O_NONBLOCK)
    writer = LogWriter(writing)
    lines = ["y" * 999 + "\n" for _ in range(500)]
    for line in lines:
        writer.write(line)
    writer.write("end\n")
    time.sleep(0.05)
    assert read_all(reading, b"end\n").decode() == "".join(lines) + "end\n"


def test_what_is_printed_is_queued_line_by_line(pipe: tuple[int, int]) -> None:
    reading, writing = pipe
    writer = LogWriter(writing)
    stream = LogStream(writer, writing)
    print("one", "two", file=stream, flush=True)
    stream.write("half ")
    stream.write("a line\nand")
    print(" more", file=stream)
    assert read_all(reading, b"more\n") == b"one two\nhalf a line\nand more\n"
    assert (stream.fileno(), stream.isatty(), stream.writable()) == (writing, False, True)


def test_a_closed_standard_error_is_no_place_for_the_first_file_that_is_opened() -> None:
    script = (
        "import os, sys\n"
        "from coordinator.log_writer import queue_standard_error\n"
        "writer = queue_standard_error()\n"
        "print('a line', file=sys.stderr)\n"
        "number = os.open(sys.argv[1], os.O_CREAT | os.O_RDWR)\n"
        "assert writer.flush(10)\n"
        "os._exit(0 if number > 2 and not os.pread(number, 10, 0) else 1)\n"
    )
    target = os.path.join(os.path.dirname(__file__), "..", "..", "none")
    done = subprocess.run(
        ["sh", "-c", 'exec "$@" 0<&- 1>&- 2>&-', "sh", sys.executable, "-c", script, os.devnull],
        check=False,
        timeout=60,
    )
    assert done.returncode == 0
    assert not os.path.exists(target)


def test_a_program_whose_own_logging_raises_is_told_later_what_was_lost() -> None:
    told: list[dict[str, Any]] = []
    broken = [True]

    def processor(logger: Any, method: str, event: Any) -> Any:
        if broken:
            raise OSError(errno.ENOSPC, "No space left on device")
        told.append(dict(event))
        raise structlog.DropEvent

    untold = Untold()
    structlog.configure(processors=[processor])
    try:
        for _ in range(3):
            untold.tell("warning", {"event": "lost", "number": 1})
        broken.clear()
        untold.tell("warning", {"event": "first", "number": 2})
        untold.tell("info", {"event": "second"})
    finally:
        structlog.reset_defaults()
    assert [event["event"] for event in told] == ["first", "second"]
    assert told[0]["events_lost_before"] == 3
    assert "No space left" in told[0]["last_error"]
    assert "events_lost_before" not in told[1]


class Interrupting(str):
    """Text that has something printed while it is being printed, as the garbage collector may at any instant."""

    stream: LogStream

    def __radd__(self, begun: str) -> str:
        self.stream.write("from a finalizer\n")
        return begun + str(self)


def test_what_is_printed_within_a_print_does_not_wait_for_itself(pipe: tuple[int, int]) -> None:
    reader, end = pipe
    writer = LogWriter(end)
    text = Interrupting("a line\n")
    text.stream = stream = LogStream(writer, end)
    printing = threading.Thread(target=stream.write, args=(text,), daemon=True)
    printing.start()
    printing.join(20)
    assert not printing.is_alive()
    assert writer.flush(20)
    assert read_all(reader, b"a line\n") == b"from a finalizer\na line\n"
