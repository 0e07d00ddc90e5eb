"""From shares to partitions: which of its own each member keeps, and which member gets each free partition."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import partial
from itertools import accumulate, chain, compress, islice, repeat

from client.assignors.assignor import topic_partitions
from client.assignors.min_cost_flow import Units
from client.assignors.owned import Owned
from client.assignors.plan import Cut, dealt_in_turn
from client.assignors.subscribers import Bundle
from protocol.subscription import TopicPartition

_FREE = bytes([1]) + bytes(255)
"""Turns the byte of a free partition, 0, into one that is true, and all others into 0."""

# What TopicPartition(topic, number) comes down to, without a Python frame for each of a million.
_new: Callable[[tuple[str, int]], TopicPartition] = partial(tuple.__new__, TopicPartition)


def keep(owned: Owned, shares: Units) -> list[list[TopicPartition]]:
    """What each member keeps, unsorted. ``shares`` is left with what each is still to get.

    What a member owns beyond its share is marked free in ``owned``. Which partitions of a bundle these are makes no
    difference to balance or movement. They are taken at even distances, beginning elsewhere for each member, so that
    the member that gets them does not get a single topic.
    """
    kept: list[list[TopicPartition]] = []
    for place, (mine, share) in enumerate(zip(owned.kept, shares, strict=True)):
        keeps: list[TopicPartition] = []
        for bundle, claimed in mine.items():
            held = len(claimed)
            gone = surplus_of(place, held, share.get(bundle, 0))
            if gone:
                for number in gone:
                    topic, partition = claimed[number]
                    owned.taken[topic][partition] = 0
                keeps += [claim for number, claim in enumerate(claimed) if number not in gone]
                share.pop(bundle, None)
            else:
                keeps += claimed
                share[bundle] = share.get(bundle, 0) - held
        kept.append(keeps)
    return kept


def surplus_of(place: int, held: int, share: int) -> set[int]:
    """Which of ``held`` partitions the member at ``place`` gives up when it is to have ``share``, by their number."""
    surplus = held - share
    return {(place + number * held // surplus) % held for number in range(surplus)}


def deal(bundles: Sequence[Bundle], needs: Units, owned: Owned) -> tuple[list[list[TopicPartition]], list[Cut]]:
    """Deals the free partitions out in turn, so that the partitions of a topic spread; to each member what it needs.

    Topics of which no member claims anything are dealt in cuts. A topic of which only some partitions are free, or that
    is not dealt evenly, comes as partitions by the place of the member.
    """
    dealt: list[list[TopicPartition]] = [[] for _ in needs]
    cuts: list[Cut] = []
    wanting: list[list[tuple[int, int]]] = [[] for _ in bundles]
    for place, share in enumerate(needs):
        for at, need in share.items():
            if need:
                wanting[at].append((need, place))
    for bundle, takers in zip(bundles, wanting, strict=True):
        if not takers:
            continue
        if owned.named.isdisjoint(bundle.topics):
            cuts += _cuts(bundle, takers, owned, dealt)
            continue
        free = _free(bundle, owned)
        for start, end, places in _rounds(takers):
            for turn, place in enumerate(places):
                dealt[place] += free[start + turn : end : len(places)]
    return dealt, cuts


def _free(bundle: Bundle, owned: Owned) -> list[TopicPartition]:
    free: list[TopicPartition] = []
    for topic in bundle.topics:
        marks = owned.taken[topic]
        numbers = compress(range(len(marks)), marks.translate(_FREE))
        free += map(_new, zip(repeat(topic), numbers, strict=False))
    return free


def _rounds(takers: list[tuple[int, int]]) -> Iterator[tuple[int, int, list[int]]]:
    """The members that take turns, by place, from one index to another in the list of free partitions.

    ``takers``: pairs of a need and a place; the needs add up to what is free.
    """
    start = served = 0
    for need in sorted({need for need, _ in takers}):
        # All that need this much or more get as many as bring those with the least need to an end.
        takers = [taker for taker in takers if taker[0] >= need]
        end = start + (need - served) * len(takers)
        yield start, end, [place for _, place in takers]
        start, served = end, need


def _cuts(
    bundle: Bundle, takers: list[tuple[int, int]], owned: Owned, dealt: list[list[TopicPartition]]
) -> Iterator[Cut]:
    """As ``deal`` would deal them in one row; a topic that two rounds share goes to ``dealt``."""
    counts = [len(owned.taken[topic]) for topic in bundle.topics]
    row = list(zip(bundle.topics, counts, accumulate(counts), strict=True))
    at = 0
    for start, end, places in _rounds(takers):
        alike: dict[tuple[int, int], list[str]] = {}  # by partitions, and by whose turn it is first
        while at < len(row) and row[at][2] - row[at][1] < end:
            topic, count, last = row[at]
            first = last - count
            if start <= first and last <= end:
                alike.setdefault((count, (first - start) % len(places)), []).append(topic)
            else:
                low, high = max(start - first, 0), min(end - first, count)
                free = topic_partitions(topic, range(low, high))
                for turn, place in enumerate(_turned(places, (first + low - start) % len(places), high - low)):
                    dealt[place] += free[turn :: len(places)]
            if last > end:
                break  # the next round goes on with it
            at += 1
        for (count, first), topics in alike.items():
            yield dealt_in_turn(topics, count, places, first, {})


def _turned(places: list[int], first: int, count: int) -> Iterator[int]:
    """The places in turn beginning with ``first``, each once, ``count`` at most."""
    return islice(chain(places[first:], places[:first]), count)
