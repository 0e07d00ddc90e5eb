"""Ledgers: what a process saw, one JSON object a line, in the kernel's hands before the process goes on.

Times are seconds of CLOCK_MONOTONIC, which all processes of a machine share. A process that is killed loses nothing it has
written; its last line may be torn.
"""

from __future__ import annotations

import json
import os
import time
from pathlib import Path
from typing import Any

Entry = dict[str, Any]


def now() -> float:
    """Seconds on the clock that all ledgers share."""
    return time.clock_gettime(time.CLOCK_MONOTONIC)


class Ledger:
    """Appends entries to a file."""

    def __init__(self, path: Path) -> None:
        self._file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)

    def write(self, event: str, at: float | None = None, **fields: Any) -> None:
        """One entry; ``at`` is when it happened, if that is not now."""
        line = json.dumps({"t": now() if at is None else at, "e": event, **fields}) + "\n"
        os.write(self._file, line.encode())

    def close(self) -> None:
        """Closes the file."""
        os.close(self._file)


def read(path: Path) -> list[Entry]:
    """All entries; a torn last line is left out."""
    if not path.exists():
        return []
    lines = path.read_bytes().split(b"\n")
    return [json.loads(line) for line in lines[:-1]]
