"""What a process has in memory, as Linux tells it."""

from __future__ import annotations

from pathlib import Path
from typing import Literal

from client.cli.failure import CommandError


def resident_bytes(pid: int, which: Literal["VmRSS", "VmHWM"]) -> int:
    """Resident memory of a process in bytes: ``VmRSS`` now, ``VmHWM`` the most it ever had."""
    for line in Path(f"/proc/{pid}/status").read_text().splitlines():
        if line.startswith(f"{which}:"):
            return int(line.split()[1]) * 1024
    raise CommandError(f"/proc/{pid}/status does not tell {which}")
