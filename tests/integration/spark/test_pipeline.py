"""``cohort demo --spark``: files, a query that is stopped in the middle, windows in a topic and in Parquet."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path

import pytest

from tests.integration.cohort_command import ROOT, arguments, environment

pytestmark = [pytest.mark.spark, pytest.mark.timeout(600)]


def test_every_line_is_counted_in_its_minute_though_the_query_is_stopped_in_the_middle(tmp_path: Path) -> None:
    files = tmp_path / "files"
    files.mkdir()
    for number in range(20):
        lines = "".join(
            f"line {each} {'ERROR here' if each % 10 == 0 else 'is fine'}\n" for each in range(9000 + number * 37)
        )
        (files / f"file-{number}.log").write_text(lines, encoding="utf-8")
    done = subprocess.run(
        [*arguments("demo", "--spark", str(files)), "--json"],
        capture_output=True,
        text=True,
        timeout=500,
        cwd=ROOT,
        env=environment(),
    )
    assert done.returncode == 0, done.stderr
    events = [json.loads(line) for line in done.stdout.splitlines()]
    result = events[-1]
    produced = sum(9000 + number * 37 for number in range(20))
    assert (result["produced"], result["counted"], result["wrong_minutes"], result["lag"]) == (
        produced,
        produced,
        [],
        0,
    )
    assert result["words"] == 4 * produced
    assert result["errors"] == sum(-(-(9000 + number * 37) // 10) for number in range(20))
    assert 0 < result["final_minutes"] < result["minutes"]
    (stopped,) = [event for event in events if event["event"] == "stopped"]
    assert 0 < stopped["lines"] < produced
