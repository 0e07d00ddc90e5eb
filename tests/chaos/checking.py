"""Where checks are registered, and what several of them look up: the highest offset of a group, by time."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections import defaultdict
from collections.abc import Callable
from typing import Final

from tests.chaos.history import History

Check = Callable[[History], list[str]]
Rows = dict[tuple[str, str, int], list[tuple[float, int]]]

CHECKS: Final[dict[str, Check]] = {}

NEVER: Final = float("inf")


def check(function: Check) -> Check:
    """Registers a check under its function's name."""
    CHECKS[function.__name__.replace("_", " ")] = function
    return function


class Resets:
    """How many times an administrator had changed what a group has committed: offsets of two epochs do not compare."""

    def __init__(self, history: History) -> None:
        self._starts: dict[str, list[float]] = defaultdict(list)
        self._resets = history.resets
        for reset in history.resets:
            self._starts[reset.group].append(reset.start)

    def epoch(self, group: str, at: float) -> int:
        """The number of changes that had begun."""
        return bisect_right(self._starts.get(group, []), at)

    def between(self, group: str, start: float, end: float) -> bool:
        """Whether one was going on at some time from ``start`` to ``end``."""
        return any(each.group == group and each.start <= end and start <= each.end for each in self._resets)


class Acknowledged:
    """The highest offset a group was told is committed, by time, since an administrator last changed it."""

    def __init__(self, history: History) -> None:
        rows: Rows = defaultdict(list)
        self._resets = Resets(history)
        for commit in history.commits:
            if commit.acknowledged < NEVER:
                epoch = self._resets.epoch(commit.group, commit.started)
                for tp, offset in commit.offsets.items():
                    rows[commit.group, tp, epoch].append((commit.acknowledged, offset))
        self._steps = _steps(rows)

    def before(self, group: str, tp: str, at: float) -> int:
        """0 when there was none."""
        times, highest = self._steps.get((group, tp, self._resets.epoch(group, at)), ([], []))
        index = bisect_left(times, at)
        return highest[index - 1] if index else 0


class Tried:
    """The highest offset that any member of a group can have committed, by time, acknowledged or not.

    A commit that failed may have been stored. Automatic commits are in no ledger; they cover what was handled.
    Administrators of a run only move back.
    """

    def __init__(self, history: History) -> None:
        rows: Rows = defaultdict(list)
        for commit in history.commits:
            for tp, offset in commit.offsets.items():
                rows[commit.group, tp, 0].append((commit.started, offset))
        for period in history.periods:
            if period.member in history.auto:
                rows[period.group, period.tp, 0].extend((at, offset + 1) for at, offset in period.handled)
        self._steps = _steps(rows)

    def before(self, group: str, tp: str, at: float) -> int:
        """0 when nothing was tried."""
        times, highest = self._steps.get((group, tp, 0), ([], []))
        index = bisect_right(times, at - 1e-9)
        return highest[index - 1] if index else 0


def _steps(rows: Rows) -> dict[tuple[str, str, int], tuple[list[float], list[int]]]:
    steps = {}
    for key, pairs in rows.items():
        pairs.sort()
        highest, top = [], 0
        for _, offset in pairs:
            top = max(top, offset)
            highest.append(top)
        steps[key] = ([at for at, _ in pairs], highest)
    return steps
