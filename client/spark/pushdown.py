"""Filters of a batch query that narrow what is read at all: on topic, partition, offset and timestamp."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Any, Final

from client.spark.planning import Range
from protocol.subscription import TopicPartition

_HIGHEST: Final = 2**63 - 1


@dataclass(frozen=True, slots=True)
class Interval:
    """Whole numbers from ``low`` to ``high``, both included."""

    low: int = 0
    high: int = _HIGHEST

    def meet(self, low: int, high: int) -> Interval:
        """What both have."""
        return Interval(max(self.low, low), min(self.high, high))

    def holds(self, number: int) -> bool:
        """Whether a number lies in it."""
        return self.low <= number <= self.high


@dataclass(frozen=True, slots=True)
class Bounds:
    """What filters leave to be read; ``None`` is everything. ``since_ms`` is a time before which no record counts."""

    topics: frozenset[str] | None = None
    numbers: frozenset[int] | None = None
    partition: Interval = Interval()
    offset: Interval = Interval()
    since_ms: int | None = None

    def narrowed(
        self, ranges: Sequence[Range], listed: Callable[[Mapping[TopicPartition, int]], Mapping[TopicPartition, int]]
    ) -> list[Range]:
        """The ranges within these bounds; ``listed`` finds the first offset at or after a time in each partition."""
        kept = [
            one._replace(start=max(one.start, self.offset.low), end=min(one.end, self.offset.high + 1))
            for one in ranges
            if (self.topics is None or one.topic in self.topics)
            and (self.numbers is None or one.partition in self.numbers)
            and self.partition.holds(one.partition)
        ]
        kept = [one for one in kept if one.size > 0]
        if self.since_ms is None or not kept:
            return kept
        first = listed(dict.fromkeys((TopicPartition(one.topic, one.partition) for one in kept), self.since_ms))
        begins = [first[TopicPartition(one.topic, one.partition)] for one in kept]
        late = [
            one._replace(start=max(one.start, begin)) for one, begin in zip(kept, begins, strict=True) if begin >= 0
        ]
        return [one for one in late if one.size > 0]


def bounds_of(filters: Sequence[Any]) -> tuple[Bounds, list[Any]]:
    """What these filters of Spark leave to be read, and those that Spark must still apply itself.

    A lower bound of timestamps is among the latter: it finds the first record that is late enough, and later ones may be
    older. An upper bound cannot be used, for the same cause.
    """
    bounds = Bounds()
    rest = []
    for one in filters:
        narrowed, exact = _apply(bounds, one)
        bounds = narrowed or bounds
        if not exact:
            rest.append(one)
    return bounds, rest


def _apply(bounds: Bounds, one: Any) -> tuple[Bounds | None, bool]:
    kind = type(one).__name__
    column = one.attribute[0] if getattr(one, "attribute", ()) and len(one.attribute) == 1 else ""
    value: Any = getattr(one, "value", None)
    if kind == "IsNotNull":
        return None, column in ("topic", "partition", "offset", "timestamp", "timestampType")
    if column == "topic" and kind in ("EqualTo", "In"):
        names: frozenset[str] = frozenset((value,) if kind == "EqualTo" else value)
        return replace(bounds, topics=names if bounds.topics is None else bounds.topics & names), True
    if column == "partition" and kind == "In":
        numbers: frozenset[int] = frozenset(value)
        return replace(bounds, numbers=numbers if bounds.numbers is None else bounds.numbers & numbers), True
    if column in ("partition", "offset") and kind in _INTERVALS and type(value) is int:
        low, high = _INTERVALS[kind](value)
        if column == "partition":
            return replace(bounds, partition=bounds.partition.meet(low, high)), True
        return replace(bounds, offset=bounds.offset.meet(low, high)), True
    if column == "timestamp" and kind in ("EqualTo", "GreaterThan", "GreaterThanOrEqual") and _is_instant(value):
        since_ms = max(0, int(value.timestamp() * 1000) - 1)
        return replace(bounds, since_ms=max(since_ms, bounds.since_ms or 0)), False
    return None, False


def _is_instant(value: Any) -> bool:
    """A time with its zone; one without could mean another instant than Spark's session does."""
    return isinstance(value, datetime) and value.tzinfo is not None


_INTERVALS: Final[Mapping[str, Callable[[int], tuple[int, int]]]] = {
    "EqualTo": lambda value: (value, value),
    "GreaterThan": lambda value: (value + 1, _HIGHEST),
    "GreaterThanOrEqual": lambda value: (value, _HIGHEST),
    "LessThan": lambda value: (0, value - 1),
    "LessThanOrEqual": lambda value: (0, value),
}
