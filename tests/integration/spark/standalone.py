"""Python in Spark's own cluster on this machine: whose executor a worker belongs to, and how workers are started."""

from __future__ import annotations

import os
import sys
from pathlib import Path

from client.bench.spark_workers import Workers


def executor_of(workers: Workers, worker_pid: int) -> int:
    """The executor, a JVM of this cluster, whose process of Python workers is ``worker_pid``."""
    stat = Path(f"/proc/{worker_pid}/stat").read_text()
    parent = int(stat.rpartition(")")[2].split()[1])
    assert b"CoarseGrainedExecutorBackend" in Path(f"/proc/{parent}/cmdline").read_bytes()
    assert os.getsid(parent) in workers.pids
    return parent


def python_settings() -> dict[str, str]:
    """Settings of a session on such a cluster, by which all its Pythons find these tests and load PySpark with bytecode.

    As in local mode: each process of Python has to be there within ten seconds, on a busy machine as well.
    """
    root = Path(__file__).parents[3]
    python = {
        "PYSPARK_PYTHON": str(root / "client" / "spark" / "worker-python"),
        "PYSPARK_COHORT_PYTHON": sys.executable,
    }
    os.environ.update(python)
    environment = python | {"PYTHONPATH": str(root)}
    return {f"spark.executorEnv.{name}": value for name, value in environment.items()}
