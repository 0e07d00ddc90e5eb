"""The work of a compaction pass in a process of its own, so that it never holds the interpreter lock of the event loop.

The process is started for one pass, as a new program and not as a copy of this one with its threads, and does nothing but
``LocalWork`` on what it is sent: it opens no file, and it has the lowest claim on the processor. The two talk over a
socket, each call one message there and one back: the length in four bytes, then msgpack. When either end is gone, the other
one ends: the pass fails, leaves the log as it was, and is tried again later. Where no process can be had, the work is done
by this one.
"""

from __future__ import annotations

import json
import signal
import socket
import subprocess
import sys
from collections.abc import Sequence
from typing import Any, Final

import msgpack

from coordinator.log.compaction_work import CompactionWork, Counts, LocalWork, Mapped, Rewritten
from coordinator.log_output import get_logger
from protocol.errors import ProtocolError

log = get_logger()

LEAST_BYTES: Final = 1024 * 1024
"""A pass over less is done by this process: it would be over before another one has started."""
_CALL_TIMEOUT_S: Final = 120.0
_START_TIMEOUT_S: Final = 60.0
_PROGRAM: Final = (
    "import json, os, sys; sys.path[:] = json.loads(sys.argv[1]); os.nice(19); "
    "from coordinator.log.compaction_process import serve; serve()"
)
_READY: Final = b"ready"


class CompactionProcessError(OSError):
    """The process of a pass could not be started, ended early or does not answer. The pass may be tried again."""


class ProcessWork:
    """``CompactionWork`` by a process. Raises ``CompactionProcessError`` when that is gone, and what the work raises."""

    def __init__(self, start_offset: int) -> None:
        ours, theirs = socket.socketpair()
        self._socket = ours
        try:
            with theirs:
                self._process = subprocess.Popen(
                    [sys.executable, "-P", "-c", _PROGRAM, json.dumps(sys.path)],
                    stdin=theirs.fileno(),
                    stdout=subprocess.DEVNULL,
                    stderr=subprocess.DEVNULL,
                )
        except BaseException:
            ours.close()
            raise
        try:
            ours.settimeout(_START_TIMEOUT_S)
            if self._call("start", start_offset) != _READY:
                raise CompactionProcessError("the process of compaction said something else than that it is ready")
            ours.settimeout(_CALL_TIMEOUT_S)
        except BaseException:
            self.close()
            raise

    def map(self, piece: bytes, offset: int) -> Mapped:
        """See ``CompactionWork``."""
        return Mapped(*self._call("map", piece, offset))

    def begin(
        self, base_offset: int, now_ms: int, horizon_ms: int, remembered: Sequence[int], index_interval_bytes: int
    ) -> None:
        """See ``CompactionWork``."""
        self._call("begin", base_offset, now_ms, horizon_ms, list(remembered), index_interval_bytes)

    def rewrite(self, piece: bytes, offset: int) -> Rewritten:
        """See ``CompactionWork``."""
        return Rewritten(*self._call("rewrite", piece, offset))

    def finish(self, next_offset: int) -> bytes:
        """See ``CompactionWork``."""
        output: bytes = self._call("finish", next_offset)
        return output

    def index(self, next_offset: int, last_ms: int) -> tuple[int, bytes]:
        """See ``CompactionWork``."""
        max_timestamp, encoded = self._call("index", next_offset, last_ms)
        return max_timestamp, encoded

    def counts(self) -> Counts:
        """See ``CompactionWork``."""
        return Counts(*self._call("counts"))

    def abort(self) -> None:
        """See ``CompactionWork``: kills the process."""
        self._process.kill()

    def close(self) -> None:
        """See ``CompactionWork``: kills the process and waits for its end."""
        self._process.kill()
        self._process.wait()
        self._socket.close()

    def _call(self, method: str, *args: Any) -> Any:
        try:
            _send(self._socket, (method, args))
            kind, result = _receive(self._socket)
        except (OSError, EOFError) as error:
            raise CompactionProcessError(
                f"the process of compaction is gone or does not answer: {error}. The log is as it was"
            ) from error
        if kind == "damaged":
            raise ProtocolError(result)
        if kind == "missing":
            raise ModuleNotFoundError(result)
        if kind == "failed":
            raise CompactionProcessError(f"the process of compaction failed: {result}. The log is as it was")
        return result


class ProcessPasses:
    """Begins passes in processes where those can be had; to be called in a thread, as it waits for the start.

    One that cannot be started, perhaps because memory is short for the moment, is tried again with the next pass; the log
    has the first of such failures in a row.
    """

    def __init__(self) -> None:
        self._failing = False

    def __call__(self, start_offset: int, size: int) -> CompactionWork:
        """A pass over ``size`` bytes of segments whose map begins at ``start_offset``."""
        if size >= LEAST_BYTES and sys.executable:
            try:
                work = ProcessWork(start_offset)
            except (OSError, ValueError) as error:
                if not self._failing:
                    log.warning("compaction has no process of its own and slows this one down", error=str(error))
                self._failing = True
            else:
                self._failing = False
                return work
        return LocalWork(start_offset)


def serve() -> None:
    """What the process does: carries out calls from the socket that is its standard input, until that ends."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # an interrupt at the terminal is for the daemon, which ends this one
    connection = socket.socket(fileno=0)
    work: LocalWork | None = None
    while True:
        try:
            method, args = _receive(connection)
        except (OSError, EOFError):
            return
        try:
            if work is None:
                work = LocalWork(*args)
                answer: tuple[str, Any] = ("done", _READY)
            else:
                answer = ("done", getattr(work, method)(*args))
        except ProtocolError as error:
            answer = ("damaged", str(error))
        except ModuleNotFoundError as error:
            answer = ("missing", str(error))
        except Exception as error:
            answer = ("failed", repr(error))
        _send(connection, answer)


def _send(connection: socket.socket, message: object) -> None:
    content = msgpack.packb(message)
    connection.sendall(len(content).to_bytes(4, "little") + content)


def _receive(connection: socket.socket) -> Any:
    length = int.from_bytes(_exactly(connection, 4), "little")
    return msgpack.unpackb(_exactly(connection, length))


def _exactly(connection: socket.socket, length: int) -> bytearray:
    content = bytearray(length)
    view, filled = memoryview(content), 0
    while filled < length:
        count = connection.recv_into(view[filled:])
        if not count:
            raise EOFError("the other end has closed the connection")
        filled += count
    return content
