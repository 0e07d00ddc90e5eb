"""How much a micro-batch reads, and in how many tasks. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import NamedTuple

from protocol.subscription import TopicPartition

Span = tuple[int, int]
"""From an offset to the one before which reading ends."""


class Range(NamedTuple):
    """A part of a partition for one task to read: the offsets from ``start`` up to and without ``end``.

    In ``start_epoch`` the leader's log went up to ``start``, in ``end_epoch`` up to ``end``; -1 when that is not known.
    """

    topic: str
    partition: int
    start: int
    end: int
    topic_id: str = ""
    start_epoch: int = -1
    end_epoch: int = -1

    @property
    def size(self) -> int:
        """How many offsets it spans; records may be fewer after compaction."""
        return self.end - self.start


def limited(spans: Mapping[TopicPartition, Span], most: int) -> dict[TopicPartition, int]:
    """Where to end so that about ``most`` offsets are read: each partition gives in proportion to what it has.

    One that has records gives one at least, so that none starves behind busy ones.
    """
    sizes = {partition: max(0, end - start) for partition, (start, end) in spans.items()}
    total = sum(sizes.values())
    if total <= most:
        return {partition: max(start, end) for partition, (start, end) in spans.items()}
    return {
        partition: spans[partition][0] + (min(size, max(1, size * most // total)) if size else 0)
        for partition, size in sizes.items()
    }


def limited_by_bytes(
    spans: Mapping[TopicPartition, Span], record_bytes: Mapping[TopicPartition, float], most: int
) -> dict[TopicPartition, int]:
    """Where to end so that about ``most`` bytes are read, when a record of each partition takes ``record_bytes``."""
    total = sum(max(0, end - start) * record_bytes.get(partition, 1.0) for partition, (start, end) in spans.items())
    count = sum(max(0, end - start) for start, end in spans.values())
    return limited(spans, count if total <= most else int(count * most / total))


def split(ranges: Sequence[Range], least: int | None) -> list[Range]:
    """The same offsets in at least ``least`` ranges if there are as many: large ranges are cut into equal parts."""
    ranges = [one for one in ranges if one.size > 0]
    if least is None or len(ranges) >= least:
        return ranges
    total = sum(one.size for one in ranges)
    parts: list[Range] = []
    left, wanted = total, least
    for one in sorted(
        ranges, key=lambda one: one.size
    ):  # the small ones first: what they do not need the large ones get
        number = max(1, min(one.size, round(one.size * wanted / left)))
        left, wanted = left - one.size, max(1, wanted - number)
        borders = [one.start + one.size * index // number for index in range(number + 1)]
        parts += [
            one._replace(start=start, end=end, start_epoch=one.start_epoch if start == one.start else one.end_epoch)
            for start, end in pairwise(borders)
        ]
    return sorted(parts)
