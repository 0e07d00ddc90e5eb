"""What must hold of groups: who owns, what is committed, how a group settles, what it tells."""

from __future__ import annotations

from collections import defaultdict
from itertools import pairwise
from typing import Final

from tests.chaos.checking import NEVER, Acknowledged, Resets, check
from tests.chaos.history import History, Period
from tests.chaos.member import STATIC_SESSION_TIMEOUT_MS

BELIEF_S: Final = 0.5
"""So long a member that is not stopped may take to hear that it is no owner any more, if it does nothing with it."""
UNTOLD_S: Final = STATIC_SESSION_TIMEOUT_MS / 1000 + 1
"""So long if nobody waits for it to give up its share and the word cannot reach it: its session ends by its own clock."""
FENCED_S: Final = 4.0
"""So soon the older of two processes with an instance id knows that, when nothing broke its requests."""


@check
def redelivered_below_the_commit(history: History) -> list[str]:
    """A new owner is not given what the group was told is committed before it began.

    Except where it takes the place of a process that lives and commits on while the new one asks where to begin.
    """
    highest = Acknowledged(history)
    found = []
    for period in history.periods:
        if not period.deliveries or _takes_over(history, period):
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
def two_owners(history: History) -> list[str]:
    """Nobody works on a partition after another member of the group got it.

    Work is a delivery, a handler until it returns, or a commit that was asked for and acknowledged. A member that was
    stopped, or whose handler blocked, may believe for long that it still owns what it had, any other for ``BELIEF_S`` at
    most. Nobody waits for a member that an administrator removed or whose instance id another process took: it works on
    until it is told. In one generation a partition has one owner, or processes with one instance id that follow each other.
    """
    found = list(history.outside)
    resets = Resets(history)
    by_partition: dict[tuple[str, str], list[Period]] = defaultdict(list)
    for period in history.periods:
        by_partition[period.group, period.tp].append(period)
    commits = _commits_by_member(history)
    for (group, tp), periods in by_partition.items():
        # The order of generations, not of what members heard: one that was blocked may hear of its share when it is gone.
        periods.sort(key=lambda period: (resets.epoch(group, period.start), period.generation, period.start))
        owners: dict[tuple[int, int], str] = {}
        for index, period in enumerate(periods):
            first = owners.setdefault((resets.epoch(group, period.start), period.generation), period.member)
            if first != period.member and not _same_instance(history, first, period.member):
                found.append(
                    f"{group} {tp}: {first} and {period.member} both owned it in generation {period.generation}"
                )
            later = periods[index + 1 :]
            usurper = next((other for other in later if other.member != period.member), None)
            if usurper is not None:
                again = next((other.start for other in later if other.member == period.member), NEVER)
                mine = [(at, offset) for at, offset in commits.get((period.member, tp), ()) if at < again]
                found += _work_after(history, period, usurper, mine)
    return found


def _work_after(history: History, period: Period, usurper: Period, commits: list[tuple[float, int]]) -> list[str]:
    who = f"{period.group} {period.tp}: {period.member} (generation {period.generation})"
    what = f"after {usurper.member} got it in generation {usurper.generation} at {usurper.start:.3f}"
    untold_s = _untold_s(history, period, usurper)
    late = [(at, offset) for at, offset, _ in period.deliveries if at > usurper.start + untold_s]
    found = [f"{who} was given @{late[0][1]} at {late[0][0]:.3f}, {what}"] if late else []
    if not _was_stopped(history, period, usurper.start):
        late = [(at, offset) for at, offset in period.returned if at > usurper.start + untold_s]
        found += [f"{who} handled @{offset} until {at:.3f}, {what}" for at, offset in late[:1]]
    found += [f"{who} committed {offset} at {at:.3f}, {what}" for at, offset in commits if usurper.start < at]
    if period.end > usurper.start + max(BELIEF_S, untold_s) and not _was_stopped(history, period, usurper.start):
        found.append(f"{who} believed in it until {period.end:.3f}, {what}")
    return found


@check
def commits_gone_back(history: History) -> list[str]:
    """What a group has committed never falls, neither in acknowledgements nor in what the daemon answers.

    Unless an administrator has changed it.
    """
    found = []
    highest = Acknowledged(history)
    resets = Resets(history)
    for commit in history.commits:
        if commit.acknowledged == NEVER:
            continue
        for tp, offset in commit.offsets.items():
            before = highest.before(commit.group, tp, commit.started)
            if offset < before:
                found.append(
                    f"{commit.group} {tp}: {commit.member} committed {offset} at {commit.started:.3f}, after {before}"
                )
    answered: dict[tuple[str, str, int], int] = {}
    for seen in sorted(history.observations, key=lambda seen: seen.asked):
        if resets.between(seen.group, seen.asked, seen.answered):
            continue
        epoch = resets.epoch(seen.group, seen.asked)
        known = {tp for group, tp, when in answered if (group, when) == (seen.group, epoch)}
        for tp in sorted({*seen.offsets, *known}):
            offset = seen.offsets.get(tp, -1)
            least = max(answered.get((seen.group, tp, epoch), -1), highest.before(seen.group, tp, seen.asked))
            if offset < least:
                found.append(f"{seen.group} {tp}: the daemon answered {offset} at {seen.answered:.3f}, after {least}")
            answered[seen.group, tp, epoch] = max(offset, answered.get((seen.group, tp, epoch), -1))
    return found


@check
def committed_unhandled(history: History) -> list[str]:
    """What a group has committed covers only records that one of its members was through with: as the daemon says."""
    first: dict[tuple[str, str], dict[int, float]] = defaultdict(dict)
    for period in history.periods:
        known = first[period.group, period.tp]
        for at, offset in period.handled:
            known[offset] = min(at, known.get(offset, NEVER))
    through: dict[tuple[str, str], list[float]] = {}
    for key, known in first.items():
        times: list[float] = []
        while len(times) in known:
            times.append(max(known[len(times)], times[-1] if times else 0.0))
        through[key] = times
    found = []
    for seen in history.observations:
        for tp, offset in seen.offsets.items():
            times = through.get((seen.group, tp), [])
            if offset > len(times) or (offset and times[offset - 1] > seen.answered):
                missing = next(n for n in range(offset) if n >= len(times) or times[n] > seen.answered)
                found.append(
                    f"{seen.group} {tp}: {offset} was committed by {seen.answered:.3f}, nobody was through with @{missing}"
                )
    return found


@check
def unfenced(history: History) -> list[str]:
    """Of several processes with one instance id the last that joined stays, every other is told that it was fenced.

    Told means an error that names the instance id; soon, unless requests were broken or the process was stopped.
    """
    by_instance: dict[tuple[str, str], list[str]] = defaultdict(list)
    for name, instance in history.instance_of.items():
        if name in history.joined:
            by_instance[history.group_of[name], instance].append(name)
    found = []
    for (group, instance), names in by_instance.items():
        names.sort(key=lambda name: history.joined[name])
        left = [
            name
            for name in names
            if history.joined[name] <= history.calm < history.ended.get(name, NEVER) and name not in history.fenced
        ]
        if len(left) > 1:
            found.append(f"{group}: {', '.join(left)} all live as {instance!r}, and nobody told them")
        found += [
            f"{group}: {name} was fenced and did not say as what: {history.fenced[name][1]}"
            for name in names
            if name in history.fenced and repr(instance) not in history.fenced[name][1]
        ]
        for older, newer in pairwise(names):
            taken = history.joined[newer]
            told = min(history.fenced.get(older, (NEVER, ""))[0], history.ended.get(older, NEVER))
            if taken + FENCED_S < told and not _out_of_reach(history, older, taken, min(told, taken + 2 * UNTOLD_S)):
                found.append(f"{group}: {newer} took {instance!r} at {taken:.3f}, and {older} heard it at {told:.3f}")
    return found


@check
def restarts_that_rebalance(history: History) -> list[str]:
    """Static members of a settled group that are restarted one by one, each within its session, rebalance nothing."""
    return [
        f"{roll.group} went from generation {roll.before} to {roll.after}: {roll.reason}"
        for roll in history.rolls
        if roll.longest < STATIC_SESSION_TIMEOUT_MS / 1000 - 1 and roll.before != roll.after
    ]


@check
def told_no_reason(history: History) -> list[str]:
    """Whoever gets or gives up partitions is told why."""
    return list(history.reasonless)


@check
def not_stable(history: History) -> list[str]:
    """After the last fault each group settles in the stated times: Stable, all partitions owned, no lag."""
    return list(history.unsettled)


def _commits_by_member(history: History) -> dict[tuple[str, str], list[tuple[float, int]]]:
    rows: dict[tuple[str, str], list[tuple[float, int]]] = defaultdict(list)
    for commit in history.commits:
        if commit.acknowledged < NEVER:
            for tp, offset in commit.offsets.items():
                rows[commit.member, tp].append((commit.started, offset))
    return rows


def _same_instance(history: History, one: str, other: str) -> bool:
    return one in history.instance_of and history.instance_of[one] == history.instance_of.get(other)


def _takes_over(history: History, period: Period) -> bool:
    return any(
        other.tp == period.tp and other.start < period.start < other.end + UNTOLD_S
        for other in history.periods
        if other.member != period.member and _same_instance(history, other.member, period.member)
    )


def _untold_s(history: History, period: Period, usurper: Period) -> float:
    """How long after ``usurper`` began the member of ``period`` may work on, as nobody waits for it to give up."""
    out = any(period.start <= at <= usurper.start for at in history.removed.get(period.member, ()))
    if not out and not _same_instance(history, period.member, usurper.member):
        return 0.0
    reached = not _out_of_reach(history, period.member, usurper.start, min(period.end, usurper.start + UNTOLD_S))
    return BELIEF_S if reached else UNTOLD_S


def _out_of_reach(history: History, name: str, start: float, end: float) -> bool:
    """Whether a member was stopped, blocked, or cut off from the daemon at some time between the two, or just before."""
    stopped = any(begin <= end and start - UNTOLD_S <= stop for begin, stop in history.stopped.get(name, ()))
    return stopped or history.hit_between(start - UNTOLD_S, end)


def _was_stopped(history: History, period: Period, at: float) -> bool:
    """Whether the member slept or was blocked between the other's start and the end of its own belief, or just before."""
    return any(start <= period.end and at - BELIEF_S <= end for start, end in history.stopped.get(period.member, ()))
