"""Filters narrow what a batch reads; what they cannot express exactly stays with Spark."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pyspark.sql.datasource import (
    EqualNullSafe,
    EqualTo,
    Filter,
    GreaterThan,
    GreaterThanOrEqual,
    In,
    IsNotNull,
    IsNull,
    LessThan,
    LessThanOrEqual,
    Not,
)

from client.spark.planning import Range
from client.spark.pushdown import bounds_of
from protocol.subscription import TopicPartition

RANGES = [Range("a", 0, 0, 100), Range("a", 1, 10, 50), Range("b", 0, 0, 5)]
THEN = datetime(2026, 1, 1, tzinfo=UTC)


def narrowed(*filters: Filter) -> tuple[list[tuple[str, int, int, int]], int]:
    bounds, rest = bounds_of(filters)
    ranges = bounds.narrowed(RANGES, lambda asked: {one: 20 if one.partition == 0 else -1 for one in asked})
    return [one[:4] for one in ranges], len(rest)


@pytest.mark.parametrize(
    ("filters", "left", "rest"),
    [
        ([EqualTo(("topic",), "b")], [("b", 0, 0, 5)], 0),
        ([In(("topic",), ("b", "c"))], [("b", 0, 0, 5)], 0),
        ([EqualTo(("partition",), 1)], [("a", 1, 10, 50)], 0),
        ([In(("partition",), (1, 2))], [("a", 1, 10, 50)], 0),
        ([GreaterThanOrEqual(("offset",), 40), LessThan(("offset",), 45)], [("a", 0, 40, 45), ("a", 1, 40, 45)], 0),
        ([GreaterThan(("offset",), 48), LessThanOrEqual(("offset",), 49)], [("a", 0, 49, 50), ("a", 1, 49, 50)], 0),
        ([IsNotNull(("offset",)), EqualTo(("offset",), 4)], [("a", 0, 4, 5), ("b", 0, 4, 5)], 0),
        ([EqualTo(("topic",), "a"), EqualTo(("topic",), "b")], [], 0),
        ([GreaterThan(("timestamp",), THEN)], [("a", 0, 20, 100)], 1),
        ([LessThan(("timestamp",), THEN)], [one[:4] for one in RANGES], 1),
        ([GreaterThan(("timestamp",), THEN.replace(tzinfo=None))], [one[:4] for one in RANGES], 1),
        ([IsNotNull(("value",)), EqualTo(("value",), b"x")], [one[:4] for one in RANGES], 2),
        ([Not(EqualTo(("partition",), 0))], [one[:4] for one in RANGES], 1),
    ],
)
def test_what_is_left_to_be_read(filters: list[Any], left: list[Any], rest: int) -> None:
    assert narrowed(*filters) == (left, rest)


RECORDS = st.lists(st.integers(0, 50), max_size=12)
"""Timestamps of the records of a partition, in ms; their offsets begin with 3."""
TIMES = st.integers(-3000, 52_000).map(lambda us: datetime(1970, 1, 1, tzinfo=UTC) + timedelta(microseconds=us))
VALUES = {
    "topic": st.sampled_from(["a", "b", "c"]),
    "partition": st.integers(-1, 3),
    "offset": st.integers(-2, 18) | st.sampled_from([-(2**63), 2**63 - 1]),
    "timestamp": TIMES,
    "value": st.just(b"x"),
}
COMPARED = (EqualTo, EqualNullSafe, GreaterThan, GreaterThanOrEqual, LessThan, LessThanOrEqual)


def some_filter() -> st.SearchStrategy[Filter]:
    def of(column: str) -> st.SearchStrategy[Filter]:
        name, values = st.just((column,)), VALUES[column]
        some = [st.builds(kind, name, values) for kind in COMPARED]
        several = st.builds(In, name, st.lists(values | st.none(), max_size=3).map(tuple))
        positive = st.one_of(*some, several, st.builds(IsNotNull, name), st.builds(IsNull, name))
        return positive | st.builds(Not, positive)

    return st.sampled_from(sorted(VALUES)).flatmap(of)


def passes(one: Any, row: dict[str, Any]) -> bool:
    """What Spark makes of a filter, for rows of which no column is null."""
    if isinstance(one, Not):
        return not passes(one.child, row) and not (isinstance(one.child, In) and None in one.child.value)
    has = row[one.attribute[0]]
    if isinstance(one, IsNotNull | IsNull):
        return isinstance(one, IsNotNull)
    if isinstance(one, In):
        return has in one.value
    if isinstance(one, EqualTo | EqualNullSafe):
        return bool(has == one.value)
    if isinstance(one, GreaterThan | GreaterThanOrEqual):
        return bool(has > one.value or (has == one.value and isinstance(one, GreaterThanOrEqual)))
    return bool(has < one.value or (has == one.value and isinstance(one, LessThanOrEqual)))


@settings(deadline=None)
@given(
    st.dictionaries(st.tuples(st.sampled_from("ab"), st.integers(0, 2)), RECORDS, min_size=1),
    st.lists(some_filter(), max_size=4),
)
def test_a_query_has_the_same_rows_with_and_without(
    log: dict[tuple[str, int], list[int]], filters: list[Filter]
) -> None:
    rows: list[dict[str, Any]] = [
        {
            "topic": topic,
            "partition": partition,
            "offset": 3 + index,
            "timestamp": datetime(1970, 1, 1, tzinfo=UTC) + timedelta(milliseconds=timestamp_ms),
            "value": b"x",
        }
        for (topic, partition), timestamps in log.items()
        for index, timestamp_ms in enumerate(timestamps)
    ]

    def listed(asked: Any) -> dict[TopicPartition, int]:
        return {
            tp: next((3 + index for index, one in enumerate(log[tuple(tp)]) if one >= since_ms), -1)
            for tp, since_ms in asked.items()
        }

    bounds, rest = bounds_of(filters)
    ranges = bounds.narrowed([Range(*where, 3, 3 + len(records)) for where, records in log.items()], listed)
    read = [
        row
        for row in rows
        if any(
            (one.topic, one.partition) == (row["topic"], row["partition"]) and one.start <= row["offset"] < one.end
            for one in ranges
        )
    ]
    assert [row for row in read if all(passes(one, row) for one in rest)] == [
        row for row in rows if all(passes(one, row) for one in filters)
    ]
