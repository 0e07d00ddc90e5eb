"""Spark's own cluster on this machine: a master and two workers, real processes on two addresses of the loopback."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
from pathlib import Path
from time import perf_counter, sleep
from types import TracebackType
from typing import Self

import pyspark

_START_S = 120.0


class Cluster:
    """Two workers with one core each: a speculative copy of a task goes to another host, so there must be two."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._processes: list[subprocess.Popen[bytes]] = []
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            self.master = f"spark://127.0.0.1:{probe.getsockname()[1]}"

    def __enter__(self) -> Self:
        port = self.master.rpartition(":")[2]
        web = ["--webui-port", "0"]
        self._start("master", "127.0.0.1", "master.Master", "--host", "127.0.0.1", "--port", port, *web)
        for number in (1, 2):
            host = f"127.0.0.{number}"
            memory = ["-c", "1", "-m", "1g", "-d", str(self._directory / f"work-{number}")]
            self._start(f"worker-{number}", host, "worker.Worker", "--host", host, *memory, *web, self.master)
        log = self._directory / "master.log"
        began = perf_counter()
        while log.read_text().count("Registering worker") < 2:
            assert perf_counter() - began < _START_S, log.read_text()
            sleep(0.1)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for process in reversed(self._processes):
            os.killpg(process.pid, signal.SIGKILL)
            process.wait(30)

    def executor_of(self, worker_pid: int) -> int:
        """The executor, a JVM of this cluster, whose process of Python workers is ``worker_pid``."""
        stat = Path(f"/proc/{worker_pid}/stat").read_text()
        parent = int(stat.rpartition(")")[2].split()[1])
        assert b"CoarseGrainedExecutorBackend" in Path(f"/proc/{parent}/cmdline").read_bytes()
        assert os.getsid(parent) in {process.pid for process in self._processes}
        return parent

    def _start(self, name: str, host: str, *arguments: str) -> None:
        home = Path(pyspark.__file__).parent
        environment = {
            **os.environ,
            "SPARK_LOCAL_IP": host,
            "PYSPARK_PYTHON": sys.executable,
            "SPARK_DAEMON_MEMORY": "300m",
        }
        with (self._directory / f"{name}.log").open("wb") as log:
            self._processes.append(
                subprocess.Popen(
                    [str(home / "bin" / "spark-class"), f"org.apache.spark.deploy.{arguments[0]}", *arguments[1:]],
                    stdout=log,
                    stderr=subprocess.STDOUT,
                    env=environment,
                    start_new_session=True,
                )
            )
