"""Writes lines to a file descriptor from a thread of its own, so that who writes them neither waits nor fails.

A pipe whose reader has stopped, a terminal on Ctrl-S, a full disk and a pipe without a reader are ordinary ends of a log.
None of them is a reason for a daemon to stop answering.
"""

from __future__ import annotations

import io
import os
import select
import sys
import threading
from collections import deque
from typing import Final

_STDERR: Final = 2

MAX_QUEUED_BYTES: Final = 1024 * 1024
_NOTE: Final = "%d log lines were dropped here: this output could not be written\n"


class LogWriter:
    """Takes lines without waiting and writes them in order. ``write`` never blocks and never raises.

    At most ``max_bytes`` are queued (1 MiB). What comes beyond, and what the descriptor does not take, is dropped and
    counted, and the next line that can be written is preceded by one that tells how many are missing.
    """

    def __init__(self, descriptor: int, max_bytes: int = MAX_QUEUED_BYTES) -> None:
        self._descriptor = descriptor
        self._max_bytes = max_bytes
        self._lines: deque[tuple[int, bytes]] = deque()  # how many were dropped before it, and the line
        self._queued_bytes = 0
        self._dropped = 0  # since the last line that was queued
        self._missing = 0  # before the next line that is written
        self._broken_off = False  # whether the end of the last line is missing
        self._idle = True
        self._changed = threading.Condition()
        self._thread: threading.Thread | None = None

    def write(self, text: str) -> None:
        """Queues ``text``, which ends with a newline, or counts it as dropped."""
        line = text.encode(errors="backslashreplace")
        with self._changed:
            if self._queued_bytes + len(line) > self._max_bytes:
                self._dropped += 1
                return
            self._lines.append((self._dropped, line))
            self._dropped = 0
            self._queued_bytes += len(line)
            if self._thread is None:
                self._thread = threading.Thread(target=self._run, name="cohort-log", daemon=True)
                self._thread.start()
            self._changed.notify_all()

    def flush(self, timeout_s: float) -> bool:
        """Waits until all that is queued was written or dropped; returns whether that was so within ``timeout_s``."""
        with self._changed:
            return self._changed.wait_for(lambda: not self._lines and self._idle, timeout_s)

    def _run(self) -> None:
        while True:
            with self._changed:
                self._idle = True
                self._changed.notify_all()
                self._changed.wait_for(lambda: self._lines)
                dropped, line = self._lines.popleft()
                self._queued_bytes -= len(line)
                self._idle = False
            self._missing += dropped
            self._write_out(line)

    def _write_out(self, line: bytes) -> None:
        note = (_NOTE % self._missing).encode() if self._missing else b""
        if self._written((b"\n" if self._broken_off else b"") + note) and self._written(line):
            self._missing = 0
        else:
            self._missing += 1

    def _written(self, data: bytes) -> bool:
        """Whether all of ``data`` could be written."""
        left = memoryview(data)
        while left:
            try:
                count = os.write(self._descriptor, left)
            except BlockingIOError:  # a descriptor that another process has made non-blocking
                _wait_writable(self._descriptor)
                continue
            except OSError:
                return False
            self._broken_off = left[count - 1] != 0x0A
            left = left[count:]
        return True


class LogStream(io.TextIOBase):
    """A ``LogWriter`` as a text file, to stand for ``sys.stderr``: what is printed is queued line by line."""

    def __init__(self, writer: LogWriter, descriptor: int) -> None:
        super().__init__()
        self._writer = writer
        self._descriptor = descriptor
        self._begun = ""
        # Reentrant: the garbage collector may run within ``write``, and what it finds may have something to say.
        self._lock = threading.RLock()

    def writable(self) -> bool:
        """True."""
        return True

    def fileno(self) -> int:
        """The descriptor behind the writer."""
        return self._descriptor

    def isatty(self) -> bool:
        """Whether a person reads it."""
        return os.isatty(self._descriptor)

    def write(self, text: str) -> int:
        """Queues the lines that ``text`` completes."""
        with self._lock:
            complete, newline, self._begun = (self._begun + text).rpartition("\n")
        if newline:
            self._writer.write(complete + newline)
        return len(text)


def _wait_writable(descriptor: int) -> None:
    poll = select.poll()
    poll.register(descriptor, select.POLLOUT)
    poll.poll()


def queue_standard_error() -> LogWriter:
    """What this process prints to ``sys.stderr`` from now on is written by a thread; ``flush`` it before the end.

    Descriptors 0 to 2 that were closed at the start are opened on nothing: otherwise the first files of the daemon would
    take their numbers, and log lines would go into records.
    """
    for descriptor in range(_STDERR + 1):
        try:
            os.fstat(descriptor)
        except OSError:
            os.open(os.devnull, os.O_RDWR)  # takes the lowest number that is free
    writer = LogWriter(_STDERR)
    sys.stderr = LogStream(writer, _STDERR)
    return writer
