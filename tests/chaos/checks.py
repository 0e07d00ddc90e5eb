"""What must hold of every history: one named function each, registered here, that returns the violations it found.

The terms are those of Jepsen's Kafka workload. At least once is the promise, so these are allowed and nothing beyond:

- A value at two offsets, when a fault that breaks requests was going on between its send and its answer (or shortly after):
  the producer then sends again what may have been stored.
- A record delivered twice to a group, when the group had not been told that it was committed before the second owner began.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections import defaultdict
from collections.abc import Callable, Iterator
from itertools import pairwise
from typing import Final

from tests.chaos.history import History, Period
from tests.chaos.producer import REQUEST_TIMEOUT_MS

Check = Callable[[History], list[str]]

CHECKS: Final[dict[str, Check]] = {}

RETRY_S: Final = REQUEST_TIMEOUT_MS / 1000 + 2
"""A request that a fault swallowed is tried again at most so long after the fault."""
BELIEF_S: Final = 0.5
"""So long a member that is not stopped may take to hear that it is no owner any more, if it does nothing with it."""
UNEXPECTED: Final = frozenset(
    {"CorruptMessageError", "OffsetOutOfRangeError", "NoOffsetForPartitionError", "UnknownServerError"}
)


def check(function: Check) -> Check:
    """Registers a check under its function's name."""
    CHECKS[function.__name__.replace("_", " ")] = function
    return function


def violations(history: History) -> dict[str, list[str]]:
    """Every check's name with what it found."""
    return {name: function(history) for name, function in CHECKS.items()}


@check
def lost(history: History) -> list[str]:
    """An acknowledged record is where the acknowledgement said, to a reader from the beginning."""
    return [
        f"{send.value} was acknowledged at {send.tp}@{send.offset}; there is {history.log.get(send.tp, {}).get(send.offset)}"
        for send in history.sends
        if send.acknowledged and history.log.get(send.tp, {}).get(send.offset) != send.value
    ]


@check
def unseen(history: History) -> list[str]:
    """Every group was given every acknowledged record by the end."""
    seen = {(period.group, period.tp, offset) for period in history.periods for _, offset, _ in period.deliveries}
    return [
        f"{send.value} at {send.tp}@{send.offset} was never given to {group}"
        for send in history.sends
        if send.acknowledged
        for group in history.groups
        if (group, send.tp, send.offset) not in seen
    ]


@check
def inconsistent_offsets(history: History) -> list[str]:
    """One offset has one value, whoever looks and whenever."""
    values: dict[tuple[str, int], set[str]] = defaultdict(set)
    for send in history.sends:
        if send.acknowledged:
            values[send.tp, send.offset].add(send.value)
    for period in history.periods:
        for _, offset, value in period.deliveries:
            values[period.tp, offset].add(value)
    for tp, log in history.log.items():
        for offset, value in log.items():
            values[tp, offset].add(value)
    return [f"{tp}@{offset} had {sorted(found)}" for (tp, offset), found in sorted(values.items()) if len(found) > 1]


@check
def duplicated(history: History) -> list[str]:
    """No value is stored twice unless its producer had to try again."""
    places: dict[str, list[str]] = defaultdict(list)
    for tp, log in history.log.items():
        for offset, value in log.items():
            places[value].append(f"{tp}@{offset}")
    sends = {send.value: send for send in history.sends}
    found = []
    for value, where in places.items():
        send = sends.get(value)
        if send is None:
            found.append(f"{value} at {where} was never sent")
        elif len(where) > 1 and not history.hit_between(send.started - RETRY_S, send.answered):
            found.append(f"{value} is stored at {where}, though nothing broke its request")
    return found


@check
def redelivered_below_the_commit(history: History) -> list[str]:
    """A new owner is not given what the group was told is committed before it began."""
    highest = _Acknowledged(history)
    found = []
    for period in history.periods:
        if not period.deliveries:
            continue
        at, offset, value = min(period.deliveries, key=lambda delivery: delivery[1])
        committed = highest.before(period.group, period.tp, period.start)
        if offset < committed:
            found.append(
                f"{period.member} was given {value} at {period.tp}@{offset} at {at:.3f}, although {committed} was committed "
                f"before its generation {period.generation} began at {period.start:.3f}"
            )
    return found


@check
def reordered(history: History) -> list[str]:
    """Offsets rise within one ownership; acknowledged values of a producer lie in each partition in the order of sends."""
    found = [
        f"{period.member} was given {period.tp}@{after} after {before} in generation {period.generation}"
        for period in history.periods
        for before, after in _pairs(period)
        if after <= before
    ]
    acknowledged = {send.value: send for send in history.sends if send.acknowledged}
    for tp, log in history.log.items():
        latest: dict[str, int] = {}
        met: set[str] = set()
        for offset in sorted(log):
            send = acknowledged.get(log[offset])
            if send is None or send.value in met:
                continue
            met.add(send.value)
            if send.sequence < latest.get(send.producer, -1):
                found.append(f"{send.value} at {tp}@{offset} comes after {send.producer}:{latest[send.producer]}")
            latest[send.producer] = max(send.sequence, latest.get(send.producer, -1))
    return found


@check
def skipped(history: History) -> list[str]:
    """No gap within one ownership, and it begins at what the group had committed or tried to, not beyond."""
    found = [
        f"{period.member} was given {period.tp}@{after} next after {before} in generation {period.generation}"
        for period in history.periods
        for before, after in _pairs(period)
        if after > before + 1
    ]
    tried = _Tried(history)
    for period in history.periods:
        if period.deliveries:
            at, first, _ = period.deliveries[0]
            limit = tried.before(period.group, period.tp, at)
            if first > limit:
                found.append(
                    f"{period.member} began {period.tp} at {first} in generation {period.generation}, beyond {limit}, the "
                    "most that its group can have committed"
                )
    return found


@check
def two_owners(history: History) -> list[str]:
    """Nobody works on a partition after another member of the group got it.

    Work is a delivery, or a commit that was asked for and acknowledged. A member that was stopped, or whose handler blocked,
    may believe for long that it still owns what it had, any other for ``BELIEF_S`` at most. And in one generation
    a partition has one owner.
    """
    found = list(history.outside)
    by_partition: dict[tuple[str, str], list[Period]] = defaultdict(list)
    for period in history.periods:
        by_partition[period.group, period.tp].append(period)
    commits = _commits_by_member(history)
    for (group, tp), periods in by_partition.items():
        periods.sort(key=lambda period: period.start)
        owners: dict[int, str] = {}
        for index, period in enumerate(periods):
            who = f"{period.member} (generation {period.generation})"
            first = owners.setdefault(period.generation, period.member)
            if first != period.member:
                found.append(
                    f"{group} {tp}: {first} and {period.member} both owned it in generation {period.generation}"
                )
            usurper = next((other for other in periods[index + 1 :] if other.member != period.member), None)
            if usurper is None:
                continue
            what = f"after {usurper.member} got it in generation {usurper.generation} at {usurper.start:.3f}"
            late = [(at, offset) for at, offset, _ in period.deliveries if at > usurper.start]
            if late:
                found.append(f"{group} {tp}: {who} was given @{late[0][1]} at {late[0][0]:.3f}, {what}")
            again = next((other.start for other in periods[index + 1 :] if other.member == period.member), float("inf"))
            for started, offset in commits.get((period.member, tp), ()):
                if usurper.start < started < again:
                    found.append(f"{group} {tp}: {who} committed {offset} at {started:.3f}, {what}")
            if period.end > usurper.start + BELIEF_S and not _was_stopped(history, period, usurper.start):
                found.append(f"{group} {tp}: {who} believed in it until {period.end:.3f}, {what}")
    return found


@check
def commits_gone_back(history: History) -> list[str]:
    """What a group has committed never falls, neither in acknowledgements nor in what the daemon answers."""
    found = []
    highest = _Acknowledged(history)
    for commit in history.commits:
        if commit.acknowledged == float("inf"):
            continue
        for tp, offset in commit.offsets.items():
            before = highest.before(commit.group, tp, commit.started)
            if offset < before:
                found.append(
                    f"{commit.group} {tp}: {commit.member} committed {offset} at {commit.started:.3f}, after {before}"
                )
    answered: dict[tuple[str, str], int] = {}
    for seen in sorted(history.observations, key=lambda seen: seen.asked):
        for tp in sorted({*seen.offsets, *(known for group, known in answered if group == seen.group)}):
            offset = seen.offsets.get(tp, -1)
            least = max(answered.get((seen.group, tp), -1), highest.before(seen.group, tp, seen.asked))
            if offset < least:
                found.append(f"{seen.group} {tp}: the daemon answered {offset} at {seen.answered:.3f}, after {least}")
            answered[seen.group, tp] = max(offset, answered.get((seen.group, tp), -1))
    return found


@check
def not_stable(history: History) -> list[str]:
    """After the last fault each group settles in the stated time: Stable, all partitions owned, no lag."""
    return list(history.unsettled)


@check
def crashed(history: History) -> list[str]:
    """No process ended by itself or printed a traceback."""
    return list(history.crashes)


@check
def unexpected_errors(history: History) -> list[str]:
    """No program was told of damage, of an offset that is gone, or of a fault of the daemon."""
    return [f"{name}: {error}: {text}" for name, error, text in history.errors if error in UNEXPECTED]


class _Acknowledged:
    """The highest offset a group was told is committed, by time."""

    def __init__(self, history: History) -> None:
        rows: dict[tuple[str, str], list[tuple[float, int]]] = defaultdict(list)
        for commit in history.commits:
            if commit.acknowledged < float("inf"):
                for tp, offset in commit.offsets.items():
                    rows[commit.group, tp].append((commit.acknowledged, offset))
        self._steps = _steps(rows)

    def before(self, group: str, tp: str, at: float) -> int:
        times, highest = self._steps.get((group, tp), ([], []))
        index = bisect_left(times, at)
        return highest[index - 1] if index else 0


class _Tried:
    """The highest offset that any member of a group can have committed, by time, acknowledged or not.

    A commit that failed may have been stored. Automatic commits are in no ledger; they cover what was handed out.
    """

    def __init__(self, history: History) -> None:
        rows: dict[tuple[str, str], list[tuple[float, int]]] = defaultdict(list)
        for commit in history.commits:
            for tp, offset in commit.offsets.items():
                rows[commit.group, tp].append((commit.started, offset))
        for period in history.periods:
            if period.member in history.auto:
                rows[period.group, period.tp].extend((at, offset + 1) for at, offset, _ in period.deliveries)
        self._steps = _steps(rows)

    def before(self, group: str, tp: str, at: float) -> int:
        times, highest = self._steps.get((group, tp), ([], []))
        index = bisect_right(times, at - 1e-9)
        return highest[index - 1] if index else 0


def _steps(
    rows: dict[tuple[str, str], list[tuple[float, int]]],
) -> dict[tuple[str, str], tuple[list[float], list[int]]]:
    steps = {}
    for key, pairs in rows.items():
        pairs.sort()
        highest, top = [], 0
        for _, offset in pairs:
            top = max(top, offset)
            highest.append(top)
        steps[key] = ([at for at, _ in pairs], highest)
    return steps


def _pairs(period: Period) -> Iterator[tuple[int, int]]:
    offsets = [offset for _, offset, _ in period.deliveries]
    return pairwise(offsets)


def _commits_by_member(history: History) -> dict[tuple[str, str], list[tuple[float, int]]]:
    rows: dict[tuple[str, str], list[tuple[float, int]]] = defaultdict(list)
    for commit in history.commits:
        if commit.acknowledged < float("inf"):
            for tp, offset in commit.offsets.items():
                rows[commit.member, tp].append((commit.started, offset))
    return rows


def _was_stopped(history: History, period: Period, at: float) -> bool:
    """Whether the member slept or was blocked between the other's start and the end of its own belief, or just before."""
    return any(start <= period.end and at - BELIEF_S <= end for start, end in history.stopped.get(period.member, ()))
