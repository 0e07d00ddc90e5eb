"""What must hold between the nodes of a cluster, whatever happens to them."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterator
from itertools import accumulate

from tests.simulation.consumers import OTHER, TOPIC
from tests.simulation.history import Committed, History, Partition, name_of
from tests.simulation.invariants import erased_since, last_erased_s
from tests.simulation.registry import invariant


@invariant
def followers_agree_below_the_high_watermark(history: History) -> Iterator[str]:
    """Each replica that is in sync has all that the leader shows, and has the same."""
    yield from history.cluster.lacking


@invariant
def no_offset_is_acknowledged_twice(history: History) -> Iterator[str]:
    """Two values are never told to be at one offset."""
    there: dict[tuple[Partition, int], str] = {}
    for value, ack in history.acknowledged.items():
        first = there.setdefault((ack.partition, ack.offset), value)
        if first != value and ack.offset >= 0 and ack.partition not in history.damaged:
            yield f"{ack.offset} of {name_of(ack.partition)} was acknowledged for {first.strip()!r} and {value.strip()!r}"


@invariant
def one_leader_per_epoch(history: History) -> Iterator[str]:
    """Two nodes never append in one epoch, and epochs only rise."""
    yield from history.cluster.two_leaders


@invariant
def logs_match(history: History) -> Iterator[str]:
    """What two replicas have at one offset and of one epoch is the same, and so is all before it, synced or not."""
    yield from history.cluster.differing


@invariant
def the_leader_is_in_sync(history: History) -> Iterator[str]:
    """A partition is led by one of the replicas in sync, or by none; there is always one in sync."""
    yield from history.cluster.not_in_sync


@invariant
def leaders_that_cannot_serve_hand_over(history: History) -> Iterator[str]:
    """Who leads a partition while its disk is full, or its log damaged, hands over if others are enough."""
    yield from history.cluster.leading_on


@invariant
def producers_are_told_at_once_that_too_few_are_in_sync(history: History) -> Iterator[str]:
    """Who waits with acks=all is told NOT_ENOUGH_REPLICAS_AFTER_APPEND when replicas are lost, and not by its timeout.

    That such a record is committed later or gone, and never there twice, others see: ``numbered_records_are_there_once``.
    """
    yield from history.cluster.held_up


@invariant
def no_reassignment_outlives_its_topic(history: History) -> Iterator[str]:
    """In the end nothing is left in the metadata of reassignments of partitions that are gone."""
    yield from history.cluster.orphaned


@invariant
def replicas_remember_the_same_producers(history: History) -> Iterator[str]:
    """Whoever leads next knows what the leader knows of producers, also of those whose records are deleted."""
    yield from history.cluster.forgotten


@invariant
def only_clean_replicas_lead(history: History) -> Iterator[str]:
    """A node that has lost its disk leads what it has copied since, and not what it was in sync with before.

    A single replica always leads: what it has is all there is.
    """
    yield from history.cluster.empty_leaders


@invariant
def the_high_watermark_is_bounded(history: History) -> Iterator[str]:
    """It is never above the end of the log, nor below what an earlier epoch showed once it has passed its own start."""
    yield from history.cluster.falling


@invariant
def metadata_is_written_with_a_fence(history: History) -> Iterator[str]:
    """Who writes a partition compares it, or is the controller, or makes its topic."""
    yield from history.cluster.unfenced


@invariant
def ends_are_not_stale(history: History) -> Iterator[str]:
    """Who asks where a partition ends is told of everything that was acknowledged before."""
    yield from history.cluster.stale


@invariant
def commits_are_not_stale(history: History) -> Iterator[str]:
    """Who asks how far a group is is told of no less than what was acknowledged, or told, before: whoever coordinates it.

    No client of a history seeks or resets. Topics that are deleted take their offsets with them.
    """
    told: dict[tuple[str, Partition], list[tuple[float, int]]] = {}
    for commit in history.commits:
        told.setdefault((commit.group, commit.partition), []).append((commit.at_s, commit.offset))
    for asked in history.cluster.asked:
        told.setdefault((asked.group, asked.partition), []).append((asked.at_s, asked.offset))
    floors = {}
    for key, offsets in told.items():
        offsets.sort()
        floors[key] = [at_s for at_s, _ in offsets], list(accumulate((offset for _, offset in offsets), max))
    erased_s = last_erased_s(history)
    for asked in history.cluster.asked:
        times, highest = floors[asked.group, asked.partition]
        before = bisect_left(times, asked.asked_s)
        if before == 0 or asked.offset >= highest[before - 1] or asked.partition[0] not in (TOPIC, OTHER):
            continue
        floor = Committed(asked.asked_s, 0, asked.group, asked.partition, highest[before - 1])
        if not erased_since(history, erased_s, floor) and asked.partition not in history.damaged:
            yield (
                f"{asked.group} was at {floor.offset} of {name_of(asked.partition)}, and who asked at {asked.asked_s:.3f} s "
                f"was told of {asked.offset} at {asked.at_s:.3f} s"
            )
