"""Drivers on a standalone cluster, and the processes of both that a test may kill."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from types import TracebackType
from typing import Any, Final, Self

from client.bench.spark_workers import Workers
from tests.integration.cohort_command import ROOT
from tests.integration.spark.obedient import Order
from tests.integration.spark.points import wait

_READY_S: Final = 400.0
_ENDED_S: Final = 400.0


def two_workers(directory: Path) -> Workers:
    """Two workers, each with room for an executor of each of three drivers."""
    directory.mkdir(parents=True, exist_ok=True)
    return Workers(directory, memory="2g", cores=3)


class Driver:
    """A driver program in a process of its own, with its JVM; see ``obedient``. It starts in the background."""

    def __init__(self, master: str, log: Path) -> None:
        self.app = ""
        self.jvm = 0
        self.failures: list[str] = []
        self._log = log
        self._ended: dict[str, str | None] = {}
        self._said = threading.Condition()
        with log.open("wb") as errors:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "tests.integration.spark.obedient", master],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=errors,
                cwd=ROOT,
                start_new_session=True,
            )
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.kill()

    def ready(self) -> Self:
        """Waits until its session is there."""
        self._wait(lambda: self.app, "the session of a driver", _READY_S)
        return self

    def start(self, order: Order) -> None:
        """Begins a query."""
        self.ready()
        self._ended.pop(order.start, None)
        self._send(order.line())

    def run(self, order: Order) -> str | None:
        """Runs a query to its end; returns why it failed."""
        self.start(order)
        return self.ended(order.start)

    def ended(self, name: str, meanwhile: Callable[[], object] = lambda: None) -> str | None:
        """Waits for the end of a query; returns why it failed. ``meanwhile`` is called again and again."""

        def has_ended() -> bool:
            meanwhile()
            return name in self._ended

        self._wait(has_ended, f"the end of query {name}", _ENDED_S)
        return self._ended[name]

    def stop(self, name: str) -> None:
        """Stops a query."""
        self._send(json.dumps({"stop": name}))
        self.ended(name)

    def check(self) -> None:
        """Raises ``AssertionError`` with its last words when it has ended."""
        status = self._process.poll()
        assert status is None, f"the driver ended with {status}: {self._log.read_text(errors='replace')[-3000:]}"

    def kill(self, *, orphans: bool = False) -> None:
        """SIGKILL for program, JVM and all their processes; ``orphans``: what the JVM has started lives on."""
        below = [self.jvm] if orphans and self.jvm else descendants(self._process.pid)
        if self._process.poll() is None:
            self._process.kill()
        for pid in below:
            end(pid)
        self._process.wait(60)
        self._reader.join(30)
        for stream in (self._process.stdin, self._process.stdout):
            assert stream is not None
            try:
                stream.close()
            except BrokenPipeError:
                pass  # an order that it had not read

    def _send(self, line: str) -> None:
        assert self._process.stdin is not None
        self._process.stdin.write(line.encode() + b"\n")
        self._process.stdin.flush()

    def _wait(self, condition: Any, what: str, most_s: float) -> None:
        def come() -> bool:
            if condition():
                return True
            self.check()
            return False

        wait(come, what, most_s)

    def _read(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            if not line.startswith(b"{"):
                continue
            said = json.loads(line)
            if "ready" in said:
                self.jvm, self.app = said["jvm"], said["ready"]
            elif "failed" in said:
                self.failures.append(said["error"])
            else:
                self._ended[said["ended"]] = said["error"]


def executors(workers: Workers, app: str) -> list[int]:
    """The JVMs that run the tasks of a driver, started by these workers."""
    return [
        pid
        for pid, command in _processes()
        if b"CoarseGrainedExecutorBackend" in command and app.encode() in command and os.getsid(pid) in workers.pids
    ]


def hosts(workers: Workers, app: str) -> set[int]:
    """The workers, which are hosts for Spark, that have an executor of a driver."""
    return {os.getsid(pid) for pid in executors(workers, app)}


def descendants(pid: int) -> list[int]:
    """All processes below one."""
    children: dict[int, list[int]] = {}
    for each, _ in _processes():
        children.setdefault(parent(each), []).append(each)
    found: list[int] = []
    waiting = [pid]
    while waiting:
        below = children.get(waiting.pop(), [])
        found += below
        waiting += below
    return found


def parent(pid: int) -> int:
    """The parent of a process, 0 when it has gone."""
    try:
        return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])
    except (OSError, IndexError):
        return 0


def end(pid: int) -> bool:
    """SIGKILL; whether there was such a process."""
    try:
        os.kill(pid, signal.SIGKILL)
    except ProcessLookupError:
        return False
    return True


def _processes() -> Iterator[tuple[int, bytes]]:
    for path in Path("/proc").glob("[0-9]*"):
        try:
            yield int(path.name), (path / "cmdline").read_bytes()
        except OSError:
            continue
