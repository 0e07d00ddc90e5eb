"""Commands of ``cohort`` as processes that are forked from one which has loaded it: each costs what it does, not its start.

``python -m tests.integration.forked_commands FD`` is that one; it listens at the socket FD, and ends when its standard input
does. A command has arguments, an environment, a directory, standard streams, an exit status and an end of its own, as if
``python -m client`` had been started.
"""

from __future__ import annotations

import atexit
import json
import os
import runpy
import select
import signal
import socket
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from functools import cache
from pathlib import Path
from typing import BinaryIO, Final

_STARTS_S: Final = 60.0
_PIECE: Final = 64 * 1024


def run_forked(
    words: Sequence[str], stdin: bytes, environment: Mapping[str, str], directory: Path, timeout_s: float
) -> subprocess.CompletedProcess[bytes]:
    """Runs a command to its end. Raises ``subprocess.TimeoutExpired`` as ``subprocess.run`` does, when it was killed."""
    in_its, in_ours = os.pipe()
    (out_ours, out_its), (errors_ours, errors_its) = os.pipe(), os.pipe()
    its = in_its, out_its, errors_its
    with (
        open(in_ours, "wb") as written,
        open(out_ours, "rb") as out,
        open(errors_ours, "rb") as errors,
        socket.socket(socket.AF_UNIX) as connection,
    ):
        connection.connect(_loaded())
        asked = {"words": list(words), "environment": dict(environment), "directory": str(directory)}
        socket.send_fds(connection, [json.dumps(asked).encode() + b"\n"], its)
        for descriptor in its:
            os.close(descriptor)
        with connection.makefile("rb") as told, ThreadPoolExecutor(3) as threads:
            streams = [threads.submit(stream.read) for stream in (out, errors)]
            threads.submit(_write, written, stdin)
            pid = int(told.readline())
            connection.settimeout(timeout_s)
            try:
                status = int(told.readline())
            except TimeoutError:
                os.kill(pid, signal.SIGKILL)
                raise subprocess.TimeoutExpired(["cohort", *words], timeout_s) from None
            return subprocess.CompletedProcess(["cohort", *words], status, *(stream.result() for stream in streams))


def _write(stream: BinaryIO, content: bytes) -> None:
    with suppress(BrokenPipeError):  # it does not want all of it
        stream.write(content)
        stream.close()


@cache
def _loaded() -> str:
    """Starts the process that forks; where it listens."""
    path = str(Path(tempfile.mkdtemp(prefix="cohort-commands-"), "socket"))
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(path)
        listener.listen()
        process = subprocess.Popen(
            [sys.executable, "-W", "error", "-m", __name__, str(listener.fileno())],
            stdin=subprocess.PIPE,
            pass_fds=[listener.fileno()],
            cwd=Path(__file__).parents[2],
        )

    def end() -> None:
        assert process.stdin is not None
        process.stdin.close()
        process.wait(_STARTS_S)
        os.unlink(path)
        os.rmdir(Path(path).parent)

    atexit.register(end)
    return path


def _serve(listener: socket.socket) -> None:
    """Forks for every connection; returns in the process of a command, when all is as it is to find it."""
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # they are waited for by nobody
    while True:
        ready, _, _ = select.select([listener, sys.stdin], [], [])
        if sys.stdin in ready:
            os._exit(0)
        connection, _ = listener.accept()
        if os.fork() == 0:
            break
        connection.close()
    listener.close()
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    asked, descriptors, _, _ = socket.recv_fds(connection, _PIECE, 3)
    while not asked.endswith(b"\n"):
        asked += connection.recv(_PIECE)
    pid = os.fork()
    if pid:
        for descriptor in descriptors:
            os.close(descriptor)
        connection.sendall(b"%d\n" % pid)
        connection.sendall(b"%d\n" % os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]))
        os._exit(0)
    connection.close()
    for stream, descriptor in enumerate(descriptors):
        os.dup2(descriptor, stream)
        os.close(descriptor)
    given = json.loads(asked)
    os.chdir(given["directory"])
    os.environ.clear()
    os.environ.update(given["environment"])
    sys.argv[1:] = given["words"]


if __name__ == "__main__":
    import client.cli.main  # noqa: F401

    _serve(socket.socket(fileno=int(sys.argv[1])))
    runpy.run_module("client", run_name="__main__", alter_sys=True)
