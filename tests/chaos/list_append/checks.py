"""What must hold of transactions and of those who read them; each check returns the violations it found.

The terms are those of Jepsen's Kafka workload. Cycles of writes alone are allowed, as in Kafka: transactions interleave in
their partitions, and there is no snapshot across them.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable
from itertools import pairwise
from typing import Final

from tests.chaos.list_append.history import Attempt, History

Check = Callable[[History], list[str]]
CHECKS: Final[dict[str, Check]] = {}

UNEXPECTED: Final = frozenset(
    {"CorruptMessageError", "OffsetOutOfRangeError", "UnknownServerError", "InvalidTransactionStateError"}
)


def check(function: Check) -> Check:
    """Registers a check under its function's name."""
    CHECKS[function.__name__.replace("_", " ")] = function
    return function


def violations(history: History) -> dict[str, list[str]]:
    """Every check's name with what it found."""
    return {name: function(history) for name, function in CHECKS.items()}


@check
def crashed(history: History) -> list[str]:
    """No process ended by itself or printed a traceback."""
    return list(history.crashes)


@check
def unexpected_errors(history: History) -> list[str]:
    """No worker was told of damage, or of a fault of the program that it did not make."""
    return [f"{worker}: {error}: {text}" for worker, error, text in history.errors if error in UNEXPECTED]


@check
def aborted_reads(history: History) -> list[str]:
    """Nothing that a transaction sent is read by anybody once its worker was told that it is aborted, or before."""
    seen = history.seen()
    return [
        f"{value} of {attempt.name}, which was aborted, was read at {tp}@{offset} by {reader or 'the last reader'}"
        for attempt in history.attempts.values()
        if attempt.told == "aborted" or attempt.wanted == "aborted" or attempt.wanted == ""
        for value in attempt.sent
        for reader, tp, offset in seen.get(value, ())[:1]
    ]


@check
def reads_before_commit(history: History) -> list[str]:
    """Nothing is read before its worker has called commit."""
    writer_of = history.writer_of()
    return [
        f"{value} at {tp}@{offset} was read by {poll.reader} {writer.ending - poll.at:.3f} s before {writer.name} called "
        "commit"
        for attempt in history.attempts.values()
        for poll in attempt.polls
        for tp, rows in poll.reads.items()
        for offset, value in rows
        if (writer := writer_of.get(value)) is not None and poll.at < writer.ending
    ]


@check
def lost(history: History) -> list[str]:
    """What a committed transaction sent is in the log, where its acknowledgement said."""
    places = _places(history)
    found = []
    for attempt in history.attempts.values():
        if attempt.told != "committed":
            continue
        for value, tp in attempt.sent.items():
            offset = attempt.stored.get(value)
            where = places.get(value, [])
            if not where or (offset is not None and (tp, offset) not in where):
                found.append(
                    f"{value} of {attempt.name} (committed) was sent to {tp}, offset {offset}; it is at {where}"
                )
    return found


@check
def torn(history: History) -> list[str]:
    """Either everything that a transaction sent is in the log, or nothing."""
    places = _places(history)
    found = []
    for attempt in history.attempts.values():
        there = [value for value in attempt.sent if value in places]
        if there and len(there) < len(attempt.sent):
            missing = sorted(set(attempt.sent) - set(there))
            found.append(f"of {attempt.name} ({attempt.told or 'not told'}) there are {there}, missing {missing}")
    return found


@check
def doubled(history: History) -> list[str]:
    """No value is stored that was not sent, and none is stored twice."""
    writer_of = history.writer_of()
    found = [
        f"{value} at {where} was never sent" for value, where in _places(history).items() if value not in writer_of
    ]
    return found + [f"{value} is stored at {where}" for value, where in _places(history).items() if len(where) > 1]


@check
def inconsistent_offsets(history: History) -> list[str]:
    """One offset has one value, whoever reads and whenever: what was read stays."""
    values: dict[tuple[str, int], set[str]] = defaultdict(set)
    for _, reads in history.all_reads():
        for tp, rows in reads.items():
            for offset, value in rows:
                values[tp, offset].add(value)
    in_log = {(tp, offset): value for tp, rows in history.log.items() for offset, value in rows}
    found = [f"{tp}@{offset} had {sorted(them)}" for (tp, offset), them in sorted(values.items()) if len(them) > 1]
    return found + [
        f"{sorted(them)} was read at {tp}@{offset}, where the log has nothing"
        for (tp, offset), them in sorted(values.items())
        if (tp, offset) not in in_log
    ]


@check
def backward_polls(history: History) -> list[str]:
    """Offsets rise from poll to poll of a reader."""
    return [
        f"{reader} was given {tp}@{later} after {earlier}"
        for (reader, tp), offsets in _offsets_of_readers(history).items()
        for earlier, later in pairwise(offsets)
        if later <= earlier
    ]


@check
def skipped_polls(history: History) -> list[str]:
    """A reader passes over no committed record between two that it was given."""
    in_log = {tp: [offset for offset, _ in rows] for tp, rows in history.log.items()}
    found = []
    for (reader, tp), offsets in _offsets_of_readers(history).items():
        given = set(offsets)
        low, high = min(offsets), max(offsets)
        missed = [offset for offset in in_log.get(tp, ()) if low < offset < high and offset not in given]
        if missed:
            found.append(f"{reader} was given {tp} from {low} to {high} without {missed[:5]}")
    return found


@check
def circular_reads(history: History) -> list[str]:
    """Committed transactions cannot each have read what the next one wrote, in a circle."""
    writer_of = history.writer_of()
    reads_from: dict[str, set[str]] = {}
    for attempt in history.attempts.values():
        if attempt.told != "committed":
            continue
        writers = (writer_of.get(value) for poll in attempt.polls for rows in poll.reads.values() for _, value in rows)
        reads_from[attempt.name] = {
            writer.name for writer in writers if writer is not None and writer.name != attempt.name
        }
    return [f"{' read from '.join(circle)}" for circle in _circles(reads_from)]


@check
def own_writes_read(history: History) -> list[str]:
    """A transaction does not read what it has written itself: that is not decided yet."""
    return [
        f"{attempt.name} read its own {value} at {tp}@{offset}"
        for attempt in history.attempts.values()
        for poll in attempt.polls
        if poll.at < attempt.ending
        for tp, rows in poll.reads.items()
        for offset, value in rows
        if value in attempt.sent
    ]


@check
def hanging_transactions(history: History) -> list[str]:
    """When every timeout is over, all of each partition is decided."""
    return [f"{tp} is stable up to {stable} only, it ends at {end}" for tp, stable, end in history.open_ends]


def counts(history: History) -> str:
    """What the run consisted of, so that a verdict over nothing is seen as such."""
    told: dict[str, int] = defaultdict(int)
    for attempt in history.attempts.values():
        told[attempt.told or "not told"] += 1
    reads = sum(len(rows) for _, reads in history.all_reads() for rows in reads.values())
    sent = sum(len(attempt.sent) for attempt in history.attempts.values())
    stored = sum(map(len, history.log.values()))
    outcomes = ", ".join(f"{name} {number}" for name, number in sorted(told.items()))
    faults = ", ".join(f"{kind} {history.faults.count(kind)}" for kind in sorted(set(history.faults)))
    return (
        f"transactions: {len(history.attempts)}: {outcomes}; producers fenced {history.fenced}\n"
        f"records: {sent} sent, {stored} committed; {reads} reads\nfaults: {faults or 'none'}"
    )


def _places(history: History) -> dict[str, list[tuple[str, int]]]:
    places: dict[str, list[tuple[str, int]]] = defaultdict(list)
    for tp, rows in history.log.items():
        for offset, value in rows:
            places[value].append((tp, offset))
    return places


def _offsets_of_readers(history: History) -> dict[tuple[str, str], list[int]]:
    offsets: dict[tuple[str, str], list[int]] = defaultdict(list)
    polls = [poll for attempt in history.attempts.values() for poll in attempt.polls]
    for poll in sorted(polls, key=lambda poll: poll.at):
        for tp, rows in poll.reads.items():
            offsets[poll.reader, tp].extend(offset for offset, _ in rows)
    return {key: given for key, given in offsets.items() if given}


def _circles(reads_from: dict[str, set[str]]) -> list[list[str]]:
    """One circle of each strongly connected part of the graph that has more than one node, found without recursion."""
    done: set[str] = set()
    circles: list[list[str]] = []
    for start in reads_from:
        path: list[str] = []
        on_path: dict[str, int] = {}
        stack = [(start, iter(sorted(reads_from[start])))] if start not in done else []
        if stack:
            on_path[start] = 0
            path.append(start)
        while stack:
            node, others = stack[-1]
            following = next((other for other in others if other in reads_from and other not in done), None)
            if following is None:
                stack.pop()
                path.pop()
                del on_path[node]
                done.add(node)
            elif following in on_path:
                circles.append([*path[on_path[following] :], following])
            else:
                on_path[following] = len(path)
                path.append(following)
                stack.append((following, iter(sorted(reads_from[following]))))
    return circles


def committed(attempts: dict[str, Attempt]) -> int:
    """How many were told that they are committed."""
    return sum(attempt.told == "committed" for attempt in attempts.values())
