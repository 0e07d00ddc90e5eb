"""What must hold when the members are Kafka's: the checks of records and commits, and that a partition is owned once.

Of ``tests.chaos`` those are left out that judge what a client does by itself: a member of Kafka's that slept longer than its
session hands out what it had fetched before it hears that it is out, and may not be blamed on the daemon; its commits may.
"""

from __future__ import annotations

from collections import defaultdict
from typing import Final

from tests.chaos import checks
from tests.chaos.checking import NEVER
from tests.chaos.history import History, Period

SHARED: Final = (
    *("crashed", "lost", "unseen", "inconsistent offsets", "duplicated", "not exactly once", "reordered", "skipped"),
    *("redelivered below the commit", "commits gone back", "committed unhandled", "not stable"),
)
"""Checks of ``tests.chaos`` that hold for clients of every kind."""
FAULTS_OF_THE_DAEMON: Final = frozenset(
    {
        *(
            "UNKNOWN",
            "INVALID_MSG",
            "OFFSET_OUT_OF_RANGE",
            "OUT_OF_ORDER_SEQUENCE_NUMBER",
            "INVALID_PRODUCER_ID_MAPPING",
        ),
        *("UnknownError", "CorruptRecordException", "OffsetOutOfRangeError", "OutOfOrderSequenceNumber"),
        *("InvalidProducerIdMapping", "CorruptMessageError", "UnknownServerError"),
    }
)
"""What a client is told, by the names of librdkafka, aiokafka and Cohort, that no fault of a run explains."""


def owned_twice(history: History) -> list[str]:
    """In one generation a partition has one owner, or processes of one instance id that follow each other.

    What a member asks to commit after another got the partition is refused. A group without members that has committed
    nothing is gone, and its generations begin anew.
    """
    found = []
    by_partition: dict[tuple[str, str], list[Period]] = defaultdict(list)
    for period in history.periods:
        by_partition[period.group, period.tp].append(period)
    for (group, tp), periods in by_partition.items():
        periods.sort(key=lambda period: (period.generation, period.start))
        owners: dict[int, Period] = {}
        for period in periods:
            first = owners.setdefault(period.generation, period)
            if first.member == period.member or _same_instance(history, first.member, period.member):
                continue
            if _is_anew(history, first, period):
                owners[period.generation] = period
            else:
                found.append(f"{group} {tp}: {first.member} and {period.member} both owned it in {period.generation}")
        found += [
            text
            for index, period in enumerate(periods)
            for text in _commits_after(history, period, periods[index + 1 :])
        ]
    return found


def told_of_faults(history: History) -> list[str]:
    """No client was told of damage, of a gap in its sequences, of an offset that is gone, or of a fault of the daemon."""
    told = [f"{name}: {error}: {text}" for name, error, text in history.errors if error in FAULTS_OF_THE_DAEMON]
    sends = [f"{send.value}: {send.error}" for send in history.sends if send.error in FAULTS_OF_THE_DAEMON]
    commits = [f"{each.member}: {each.error}" for each in history.commits if each.error in FAULTS_OF_THE_DAEMON]
    return told + sends + commits


def violations(history: History) -> dict[str, list[str]]:
    """Every check's name with what it found."""
    found = checks.violations(history)
    return {
        **{name: found[name] for name in SHARED},
        "owned twice": owned_twice(history),
        "told of faults": told_of_faults(history),
    }


def _commits_after(history: History, period: Period, later: list[Period]) -> list[str]:
    """Commits of its member that were asked for after the next owner began, and acknowledged."""
    usurper = next((other for other in later if other.member != period.member), None)
    if usurper is None or _same_instance(history, period.member, usurper.member):
        return []
    again = next((other.start for other in later if other.member == period.member), NEVER)
    who = f"{period.group} {period.tp}: {period.member} (generation {period.generation})"
    return [
        f"{who} committed {commit.offsets[period.tp]} "
        f"at {commit.started:.3f}, after {usurper.member} got it in {usurper.generation} at {usurper.start:.3f}"
        for commit in history.commits
        if commit.member == period.member
        and period.tp in commit.offsets
        and usurper.start < commit.started < again
        and commit.acknowledged < NEVER
    ]


def _is_anew(history: History, first: Period, period: Period) -> bool:
    """Whether the group may have been gone in between: nobody owned anything for a moment, and nothing was committed."""
    of_group = [other for other in history.periods if other.group == first.group]
    ends = sorted(other.end for other in of_group if first.end <= other.end <= period.start)
    alone = any(not any(other.start <= end < other.end for other in of_group) for end in ends)
    return alone and not any(
        commit.group == first.group and commit.acknowledged <= period.start for commit in history.commits
    )


def _same_instance(history: History, one: str, other: str) -> bool:
    return one in history.instance_of and history.instance_of[one] == history.instance_of.get(other)
