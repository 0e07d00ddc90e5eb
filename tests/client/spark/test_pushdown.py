"""Filters narrow what a batch reads; what they cannot express exactly stays with Spark."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import pytest
from pyspark.sql.datasource import (
    EqualTo,
    Filter,
    GreaterThan,
    GreaterThanOrEqual,
    In,
    IsNotNull,
    LessThan,
    LessThanOrEqual,
    Not,
)

from client.spark.planning import Range
from client.spark.pushdown import bounds_of

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
