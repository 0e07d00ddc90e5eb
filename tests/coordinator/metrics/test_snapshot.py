"""What is collected is bounded, comes in slices, and is what the documents list."""

from __future__ import annotations

import asyncio
import re
from pathlib import Path

from coordinator.histogram import Histogram
from coordinator.metrics.definitions import METRICS
from coordinator.metrics.snapshot import Snapshot

PAGE = Path(__file__).parents[3] / "docs" / "operate.md"


def test_the_page_on_operation_has_each_metric_as_it_is() -> None:
    section = PAGE.read_text(encoding="utf-8").partition("## Metrics and health\n")[2].partition("\n## ")[0]
    rows = re.findall(r"^\| `(cohort_\w+)` \| (\w+) \| ([\w, -]+) \| (.+) \|$", section, re.MULTILINE)
    assert rows == [(m.name, m.kind, ", ".join(m.labels) or "-", m.text) for m in METRICS.values()]


def test_names_follow_prometheus_conventions() -> None:
    for metric in METRICS.values():
        assert re.fullmatch(r"cohort_[a-z_]+", metric.name)
        assert metric.name.endswith("_total") == (metric.kind == "counter"), metric.name
        assert metric.kind != "histogram" or metric.name.endswith("_seconds")


def test_of_a_metric_by_group_the_first_series_are_kept_and_the_others_counted() -> None:
    snapshot = Snapshot(max_series=2)
    for name in ("a", "b", "c", "d", "e"):
        snapshot.add_bounded("cohort_group_members", 1, name)
    assert [labels for labels, _ in snapshot.samples["cohort_group_members"]] == [("a",), ("b",)]
    assert snapshot.left_out == {"cohort_group_members": 3}


async def test_others_have_their_turn_while_much_is_collected() -> None:
    turns = 0

    async def count_turns() -> None:
        nonlocal turns
        while True:
            turns += 1
            await asyncio.sleep(0)

    counting = asyncio.create_task(count_turns())
    snapshot = Snapshot(max_series=10)
    for _ in range(10_000):
        await snapshot.worked()
    counting.cancel()
    assert turns >= 20


def test_a_histogram_counts_bounds_into_the_bucket_that_ends_there() -> None:
    histogram = Histogram((0.1, 1.0))
    for value in (0.05, 0.1, 0.5, 1.0, 2.0):
        histogram.observe(value)
    assert histogram.now() == ((0.1, 1.0), (2, 2, 1), 3.65)
    assert histogram.count == 5
