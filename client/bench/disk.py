"""Floors of the disk, measured where the daemon keeps its data."""

from __future__ import annotations

import fcntl
import os
import zlib
from pathlib import Path
from time import perf_counter

# These functions block on purpose: call them in a worker thread.


def make_durable(descriptor: int) -> None:
    """What was written is on the disk, by the call that a daemon makes for it: ``F_FULLFSYNC`` on macOS, else fdatasync."""
    full_sync = getattr(fcntl, "F_FULLFSYNC", None)
    if full_sync is None:
        getattr(os, "fdatasync", os.fsync)(descriptor)
    else:
        fcntl.fcntl(descriptor, full_sync)


def syncs_per_second(directory: Path, size: int, seconds: float) -> float:
    """How often a second ``size`` bytes can be appended to a file and be made durable."""
    content = os.urandom(max(1, size))
    descriptor = os.open(directory / "floor", os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
    try:
        began = perf_counter()
        count = 0
        while (took := perf_counter() - began) < seconds or not count:
            os.write(descriptor, content)
            make_durable(descriptor)
            count += 1
        return count / took
    finally:
        os.close(descriptor)
        (directory / "floor").unlink()


def write_seconds(directory: Path, pieces: list[list[bytes]]) -> float:
    """Seconds to join the values of each piece, write them to a file and make each piece durable."""
    descriptor = os.open(directory / "floor", os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
    try:
        began = perf_counter()
        for piece in pieces:
            os.write(descriptor, b"".join(piece))
            make_durable(descriptor)
        return perf_counter() - began
    finally:
        os.close(descriptor)
        (directory / "floor").unlink()


def read_seconds(directory: Path) -> float:
    """Seconds to read all files below a directory and take their checksums."""
    began = perf_counter()
    for path in sorted(directory.rglob("*")):
        if path.is_file():
            zlib.crc32(path.read_bytes())
    return perf_counter() - began


def tree_bytes(directory: Path, pattern: str) -> int:
    """The size of all files in the directories that match ``pattern``."""
    return sum(path.stat().st_size for path in directory.glob(f"{pattern}/*") if path.is_file())
