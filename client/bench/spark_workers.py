"""A cluster of Spark's own on this machine: a master and workers of one core each or more, which are real processes."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
from pathlib import Path
from time import perf_counter, sleep
from types import TracebackType
from typing import Final, Self

from client.cli.failure import CommandError
from client.cli.processes import child_environment

_START_TIMEOUT_S: Final = 120.0
_END_TIMEOUT_S: Final = 30.0
_REGISTERED: Final = "Registering worker"


class Workers:
    """Use as a context manager; ``master`` is what a session is given. At the end every process is gone.

    Each worker has an address of the loopback of its own, since Spark takes workers with one address for one machine.
    """

    def __init__(self, directory: Path, count: int = 2, memory: str = "1g", cores: int = 1) -> None:
        self.master = ""
        self._directory = directory
        self._count = count
        self._memory = memory
        self._cores = str(cores)
        self._processes: list[subprocess.Popen[bytes]] = []

    def __enter__(self) -> Self:
        """Returns when all workers are there. Raises ``CommandError`` with the master's words when they are not in time."""
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            port = probe.getsockname()[1]
        self.master = f"spark://127.0.0.1:{port}"
        try:
            self._start("master", "127.0.0.1", "master.Master", "--port", str(port))
            for number in range(1, self._count + 1):
                options = (
                    "-c",
                    self._cores,
                    "-m",
                    self._memory,
                    "-d",
                    str(self._directory / f"worker-{number}"),
                    self.master,
                )
                self._start(f"worker-{number}", f"127.0.0.{number}", "worker.Worker", *options)
            self._wait()
        except BaseException:
            self._end()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._end()

    @property
    def pids(self) -> frozenset[int]:
        """The processes started here. Each leads a session of its own, to which a worker's executors belong."""
        return frozenset(process.pid for process in self._processes)

    def _start(self, name: str, host: str, role: str, *options: str) -> None:
        import pyspark

        spark_class = str(Path(pyspark.__file__).parent / "bin" / "spark-class")
        command = [spark_class, f"org.apache.spark.deploy.{role}", "--host", host, "--webui-port", "0", *options]
        environment = child_environment() | {"SPARK_LOCAL_IP": host, "SPARK_DAEMON_MEMORY": "256m"}
        with self._log(name).open("wb") as log:
            process = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                env=environment,
                start_new_session=True,
            )
        self._processes.append(process)

    def _wait(self) -> None:
        began = perf_counter()
        while self._log("master").read_text(errors="replace").count(_REGISTERED) < self._count:
            if any(process.poll() is not None for process in self._processes):
                raise CommandError(f"spark: a process of its cluster ended{self._said()}")
            if perf_counter() - began > _START_TIMEOUT_S:
                raise CommandError(f"spark: its workers were not there after {_START_TIMEOUT_S:.0f} s{self._said()}")
            sleep(0.1)

    def _said(self) -> str:
        lines = self._log("master").read_text(errors="replace").splitlines()[-10:]
        return "".join(f"\n  {line}" for line in lines)

    def _log(self, name: str) -> Path:
        return self._directory / f"{name}.log"

    def _end(self) -> None:
        """Workers first: they end their executors, which belong to their sessions."""
        for process in reversed(self._processes):
            try:
                os.killpg(process.pid, signal.SIGKILL)
            except ProcessLookupError:
                pass  # it had ended by itself
            process.wait(_END_TIMEOUT_S)
        self._processes.clear()
