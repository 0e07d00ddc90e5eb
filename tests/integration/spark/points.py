"""Points in a query at which something happens: files name them, in a directory that tests and Spark's processes share.

A file ``POINT.hold`` has the process that comes to POINT wait until the file ``POINT.hold.taken``, which it becomes, is
gone; a file ``POINT.fail`` has it fail. One process takes a file, the one that comes first.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from time import perf_counter, perf_counter_ns, sleep
from typing import Final

_FAILED: Final = "failed"
_SUCCEEDED: Final = "succeeded"
_HELD_S: Final = 600.0
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


def tell(file: Path, text: str) -> None:
    """Writes a file that another process waits for: it is there with all of its text."""
    mine = file.with_suffix(f".{os.getpid()}.telling")
    mine.write_text(text)
    mine.rename(file)


def reach(directory: Path, point: str) -> None:
    """Called by the process that is at ``point``: it is held there, or fails, if a file says so."""
    if taken(directory, point, "fail") is not None:
        raise RuntimeError(f"it fails at the point {point}")
    held = taken(directory, point, "hold")
    if held is not None:
        wait(lambda: not held.exists(), f"the end of {held}", _HELD_S)


@contextmanager
def an_attempt(directory: Path, point: str) -> Iterator[None]:
    """This process runs an attempt at the task of ``point``: a file has its id, and then what became of it."""
    file = directory / f"{point}.{os.getpid()}.{perf_counter_ns()}.attempt"
    file.write_text(str(os.getpid()))
    try:
        yield
    except BaseException:
        file.write_text(_FAILED)
        raise
    file.write_text(_SUCCEEDED)


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

    def is_held(self, point: str) -> bool:
        """Whether a process is held there."""
        return (self.directory / f"{point}.hold.taken").exists()

    def release_if_alone(self, point: str) -> None:
        """The attempt that is held goes on if another one at its task has failed, and none has succeeded.

        Spark gives no copy of a task to a host where an attempt at it has been: of two hosts none may be left.
        """
        held = self.directory / f"{point}.hold.taken"
        attempts = {file: _text(file) for file in self.directory.glob(f"{point}.*.attempt")}
        if _SUCCEEDED in attempts.values() or not held.exists():
            return
        gone = {said for said in attempts.values() if said.isdigit() and not Path(f"/proc/{said}").exists()}
        if _FAILED in attempts.values() or gone - {_text(held)}:
            held.unlink()

    def forget_attempts(self) -> None:
        """What follows is about others."""
        for file in self.directory.glob("*.attempt"):
            file.unlink()

    def release(self, point: str) -> None:
        """The process that is held goes on."""
        (self.directory / f"{point}.hold.taken").unlink()


def _text(file: Path) -> str:
    """What it says; nothing when it is gone."""
    try:
        return file.read_text()
    except FileNotFoundError:
        return ""


def wait(condition: Callable[[], object], what: str, most_s: float = 400.0) -> None:
    """Returns when ``condition`` holds. Raises ``AssertionError`` when it does not in time."""
    began = perf_counter()
    while not condition():
        assert perf_counter() - began < most_s, f"{what} did not come within {most_s:.0f} s"
        sleep(0.02)
