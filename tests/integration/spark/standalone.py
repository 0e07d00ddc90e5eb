"""Whose executor a Python worker belongs to, in Spark's own cluster on this machine."""

from __future__ import annotations

import os
from pathlib import Path

from client.bench.spark_workers import Workers


def executor_of(workers: Workers, worker_pid: int) -> int:
    """The executor, a JVM of this cluster, whose process of Python workers is ``worker_pid``."""
    stat = Path(f"/proc/{worker_pid}/stat").read_text()
    parent = int(stat.rpartition(")")[2].split()[1])
    assert b"CoarseGrainedExecutorBackend" in Path(f"/proc/{parent}/cmdline").read_bytes()
    assert os.getsid(parent) in workers.pids
    return parent
