"""Runs ``cohort`` as people do: a process with arguments, standard streams and an exit status."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parent.parent.parent
TIMEOUT_S = 60


def arguments(*words: str, address: str | None = None) -> list[str]:
    """The command line of ``cohort`` with these words."""
    return [sys.executable, "-W", "error", "-m", "client", *(("-b", address) if address else ()), *words]


def environment() -> dict[str, str]:
    """Ours without settings of Cohort."""
    return {name: value for name, value in os.environ.items() if not name.startswith("COHORT_")}


def cohort(
    *words: str,
    address: str | None = None,
    stdin: bytes = b"",
    env: dict[str, str] | None = None,
    timeout_s: float = TIMEOUT_S,
    with_spark: bool = False,
) -> subprocess.CompletedProcess[str]:
    """Runs a command to its end. No expected failure shows a traceback.

    ``with_spark``: the command runs Spark, whose workers print one when a query is stopped in the middle of a batch.
    """
    done = subprocess.run(
        arguments(*words, address=address),
        input=stdin,
        capture_output=True,
        timeout=timeout_s,
        cwd=ROOT,
        env=environment() | (env or {}),
    )
    result = subprocess.CompletedProcess(done.args, done.returncode, done.stdout.decode(), done.stderr.decode())
    assert with_spark or "Traceback" not in result.stderr, result.stderr
    return result


def output(*words: str, address: str, stdin: bytes = b"") -> str:
    """What a command that succeeds prints."""
    done = cohort(*words, address=address, stdin=stdin)
    assert done.returncode == 0, done.stderr
    return done.stdout


def objects(
    *words: str, address: str | None = None, timeout_s: float = TIMEOUT_S, with_spark: bool = False
) -> list[Any]:
    """The JSON objects that a command that succeeds prints, one a line. ``with_spark``: see ``cohort``."""
    done = cohort(*words, "--json", address=address, timeout_s=timeout_s, with_spark=with_spark)
    assert done.returncode == 0, done.stderr
    return [json.loads(line) for line in done.stdout.splitlines()]
