"""What must hold of records: stored, found again, given to every group, in order."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from itertools import pairwise
from typing import Final

from tests.chaos.checking import Tried, check
from tests.chaos.history import History, Period, Send
from tests.chaos.producer import REQUEST_TIMEOUT_MS

RETRY_S: Final = REQUEST_TIMEOUT_MS / 1000 + 2
"""A request that a fault swallowed is tried again at most so long after the fault."""


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
    """Every group was given every acknowledged record by the end, and a member of it was through with it."""
    seen = {(period.group, period.tp, offset) for period in history.periods for _, offset in period.handled}
    return [
        f"{send.value} at {send.tp}@{send.offset} was never handled in {group}"
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
    """No value is stored that was not sent, and none twice unless its producer numbers nothing and had to try again."""
    sends = {send.value: send for send in history.sends}
    found = []
    for value, where in _places(history).items():
        send = sends.get(value)
        if send is None:
            found.append(f"{value} at {where} was never sent")
        elif send.producer in history.once:
            continue
        elif len(where) > 1 and not history.hit_between(send.started - RETRY_S, send.answered):
            found.append(f"{value} is stored at {where}, though nothing broke its request")
    return found


@check
def not_exactly_once(history: History) -> list[str]:
    """What a producer that numbers its batches has sent is stored once at most, and each partition has it in order.

    Whatever broke its requests, whether it was acknowledged, failed, or the producer was killed before it knew.
    """
    places = _places(history)
    found = [
        f"{send.value} is stored at {places[send.value]}"
        for send in history.sends
        if send.producer in history.once and len(places.get(send.value, ())) > 1
    ]
    sends = {send.value: send for send in history.sends if send.producer in history.once}
    return found + _out_of_order(history, sends)


@check
def reordered(history: History) -> list[str]:
    """Offsets rise within one ownership, or those of each key where records are handled by key; what a producer that
    numbers nothing was acknowledged lies in order, unless it sends requests behind those that it sends again.
    """
    found = [
        f"{period.member} was given {period.tp}@{after} after {before} in generation {period.generation}"
        for period in history.periods
        for before, after in (*_pairs(period), *_pairs_by_key(period))
        if after <= before
    ]
    others = history.once | history.unordered
    acknowledged = {send.value: send for send in history.sends if send.acknowledged and send.producer not in others}
    return found + _out_of_order(history, acknowledged)


@check
def skipped(history: History) -> list[str]:
    """No gap within one ownership, and it begins at what the group had committed or tried to, not beyond.

    Where records are handled by key they are begun in another order, and only the beginning is looked at: a record that is
    passed over is ``unseen``, or ``committed_unhandled``.
    """
    found = [
        f"{period.member} was given {period.tp}@{after} next after {before} in generation {period.generation}"
        for period in history.periods
        for before, after in _pairs(period)
        if after > before + 1
    ]
    tried = Tried(history)
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


def _places(history: History) -> dict[str, list[str]]:
    places: dict[str, list[str]] = defaultdict(list)
    for tp, log in history.log.items():
        for offset, value in log.items():
            places[value].append(f"{tp}@{offset}")
    return places


def _out_of_order(history: History, sends: dict[str, Send]) -> list[str]:
    """Of ``sends``, by value: those whose first copy in a partition comes after a later one of their producer."""
    found = []
    for tp, log in history.log.items():
        latest: dict[str, int] = {}
        met: set[str] = set()
        for offset in sorted(log):
            send = sends.get(log[offset])
            if send is None or send.value in met:
                continue
            met.add(send.value)
            if send.sequence < latest.get(send.producer, -1):
                found.append(f"{send.value} at {tp}@{offset} comes after {send.producer}:{latest[send.producer]}")
            latest[send.producer] = max(send.sequence, latest.get(send.producer, -1))
    return found


def _pairs(period: Period) -> Iterator[tuple[int, int]]:
    """Offsets that follow each other where one record is handled after the other."""
    offsets = [offset for _, offset, _ in period.deliveries]
    return iter(()) if period.runs else pairwise(offsets)


def _pairs_by_key(period: Period) -> Iterator[tuple[int, int]]:
    """The same of each key, where records are handled by key."""
    for run in period.runs:
        by_key: dict[str, list[int]] = defaultdict(list)
        for key, offset in run:
            by_key[key].append(offset)
        for offsets in by_key.values():
            yield from pairwise(offsets)
