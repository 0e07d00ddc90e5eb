"""Lengths of time as a user writes them: a number with its unit, or as ISO 8601 and Kafka's tools have them."""

from __future__ import annotations

import argparse
from datetime import UTC, datetime, timedelta

import pytest

from client.cli.options import duration_ms, point_in_time

S, M, H, D = 1000, 60_000, 3_600_000, 86_400_000


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        *[("500ms", 500), ("60s", 60 * S), ("5m", 5 * M), ("2h", 2 * H), ("1d", D)],
        *[("PT2H", 2 * H), ("P1D", D), ("PT90S", 90 * S), ("P1DT2H30M5S", D + 2 * H + 30 * M + 5 * S), ("PT0S", 0)],
    ],
)
def test_a_length_of_time_is_told_in_either_way(text: str, expected: int) -> None:
    assert duration_ms(text) == expected


@pytest.mark.parametrize(
    "text", ["", "60", "soon", "-2h", "P", "PT", "P1DT", "PT2", "2H", "P1Y", "P1M", "PT-2H", "PT2M1H"]
)
def test_what_is_none_is_refused(text: str) -> None:
    with pytest.raises(argparse.ArgumentTypeError, match=r"is no length of time, such as 500ms, .* or PT2H"):
        duration_ms(text)


@pytest.mark.parametrize("text", ["2h", "PT2H"])
def test_a_time_may_be_so_long_ago(text: str) -> None:
    assert abs(datetime.now(UTC) - timedelta(hours=2) - point_in_time(text)) < timedelta(seconds=30)
