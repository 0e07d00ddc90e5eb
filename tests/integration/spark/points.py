"""Points in a query at which something happens: files name them, in a directory that tests and Spark's processes share.

A file ``POINT.hold`` has the process that comes to POINT wait until the file ``POINT.hold.taken``, which it becomes, is
gone; a file ``POINT.fail`` has it fail. One process takes a file, the one that comes first.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from time import perf_counter, sleep
from typing import Final

_HELD_S: Final = 240.0
"""How long a process is held at most: a test that died leaves none behind for ever."""


def taken(directory: Path, point: str, what: str) -> Path | None:
    """The file that says that ``what`` happens at ``point``, if this process is the one to take it. Has its id by then."""
    named, mine = directory / f"{point}.{what}", directory / f"{point}.{os.getpid()}.taking"
    try:
        named.rename(mine)
    except FileNotFoundError:
        return None
    mine.write_text(str(os.getpid()))
    return mine.rename(directory / f"{point}.{what}.taken")


def reach(directory: Path, point: str) -> None:
    """Called by the process that is at ``point``: it is held there, or fails, if a file says so."""
    if taken(directory, point, "fail") is not None:
        raise RuntimeError(f"it fails at the point {point}")
    held = taken(directory, point, "hold")
    if held is not None:
        wait(lambda: not held.exists(), f"the end of {held}", _HELD_S)


class Points:
    """The points of one query, as a test sees them."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        directory.mkdir(parents=True, exist_ok=True)

    def set(self, point: str, what: str = "hold") -> None:
        """The next process at ``point`` is held there, or what else is to happen to it."""
        (self.directory / f"{point}.{what}").touch()

    def reached(self, point: str, what: str = "hold", alive: Callable[[], object] = lambda: None) -> int:
        """Waits until a process is there; returns its id. ``alive`` raises when there is no more to wait for."""
        there = self.directory / f"{point}.{what}.taken"

        def come() -> bool:
            alive()
            return there.exists()

        wait(come, f"a process at {there}")
        return int(there.read_text())

    def release(self, point: str) -> None:
        """The process that is held goes on."""
        (self.directory / f"{point}.hold.taken").unlink()


def wait(condition: Callable[[], object], what: str, most_s: float = 400.0) -> None:
    """Returns when ``condition`` holds. Raises ``AssertionError`` when it does not in time."""
    began = perf_counter()
    while not condition():
        assert perf_counter() - began < most_s, f"{what} did not come within {most_s:.0f} s"
        sleep(0.02)
