"""From shares to partitions: what each member keeps of its own, and the dealing out of the rest."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from itertools import compress, repeat

from client.assignors.claims import Claims
from client.assignors.flow import Units
from client.assignors.subscribers import Bundle
from protocol.subscription import TopicPartition

_FREE = bytes([1]) + bytes(255)
"""Turns the byte of a free partition, 0, into one that is true, and all others into 0."""

# What TopicPartition(topic, number) comes down to, without a Python frame for each of a million.
_new: Callable[[tuple[str, int]], TopicPartition] = partial(tuple.__new__, TopicPartition)


def keep(claims: Claims, shares: Units) -> list[list[TopicPartition]]:
    """What each member keeps, unsorted. ``shares`` is left with what each is still to get.

    What a member holds beyond its share is marked free in ``claims``. Which partitions of a bundle these are makes no
    difference to balance or movement. They are taken at even distances, beginning elsewhere for each member, so that
    whoever gets them does not get a single topic.
    """
    kept: list[list[TopicPartition]] = []
    for place, (mine, share) in enumerate(zip(claims.kept, shares, strict=True)):
        keeps: list[TopicPartition] = []
        for bundle, claimed in mine.items():
            held = len(claimed)
            surplus = held - share.get(bundle, 0)
            if surplus > 0:
                gone = {(place + number * held // surplus) % held for number in range(surplus)}
                for number in gone:
                    topic, partition = claimed[number]
                    claims.taken[topic][partition] = 0
                keeps += [claim for number, claim in enumerate(claimed) if number not in gone]
                share.pop(bundle, None)
            else:
                keeps += claimed
                share[bundle] = -surplus
        kept.append(keeps)
    return kept


def deal(bundles: Sequence[Bundle], needs: Units, claims: Claims) -> list[list[TopicPartition]]:
    """Deals the free partitions out in turn, so that the partitions of a topic spread; to each member what it needs."""
    dealt: list[list[TopicPartition]] = [[] for _ in needs]
    wanting: list[list[tuple[int, int]]] = [[] for _ in bundles]
    for place, share in enumerate(needs):
        for at, need in share.items():
            if need:
                wanting[at].append((need, place))
    for bundle, takers in zip(bundles, wanting, strict=True):
        if takers:
            _deal(_free(bundle, claims), takers, dealt)
    return dealt


def _free(bundle: Bundle, claims: Claims) -> list[TopicPartition]:
    free: list[TopicPartition] = []
    for topic in bundle.topics:
        marks = claims.taken[topic]
        numbers = compress(range(len(marks)), marks.translate(_FREE))
        free += map(_new, zip(repeat(topic), numbers, strict=False))
    return free


def _deal(free: list[TopicPartition], takers: list[tuple[int, int]], dealt: list[list[TopicPartition]]) -> None:
    """``takers``: pairs of a need and a place; the needs add up to what is free."""
    start = served = 0
    for need in sorted({need for need, _ in takers}):
        # All that need this much or more get as many as bring those with the least need to an end.
        takers = [taker for taker in takers if taker[0] >= need]
        turns = len(takers)
        end = start + (need - served) * turns
        for turn, (_, place) in enumerate(takers):
            dealt[place] += free[start + turn : end : turns]
        start, served = end, need
