"""``cohort demo --spark``: files, a query that is stopped in the middle, windows in a topic and in Parquet."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from tests.daemon_process import DaemonProcess
from tests.integration.cohort_command import ROOT, objects
from tests.integration.spark.calls import prepare, produce, read, run

pytestmark = [pytest.mark.spark, pytest.mark.timeout(600)]


def test_every_line_is_counted_in_its_minute_though_the_query_is_stopped_in_the_middle(tmp_path: Path) -> None:
    files = tmp_path / "files"
    files.mkdir()
    for number in range(20):
        lines = "".join(
            f"line {each} {'ERROR here' if each % 10 == 0 else 'is fine'}\n" for each in range(9000 + number * 37)
        )
        (files / f"file-{number}.log").write_text(lines, encoding="utf-8")
    events = objects("demo", "--spark", str(files), timeout_s=500)
    result = events[-1]
    produced = sum(9000 + number * 37 for number in range(20))
    assert (result["produced"], result["delivered"], result["lost"], result["lag"]) == (produced, produced, 0, 0)
    assert result["wrong_minutes"] == []
    assert result["words"] == 4 * produced
    assert result["errors"] == sum(-(-(9000 + number * 37) // 10) for number in range(20))
    assert 0 < result["final_minutes"] < result["minutes"]
    (stopped,) = [event for event in events if event["event"] == "stopped"]
    assert 0 < stopped["lines"] < produced


def test_the_program_of_the_readme_goes_on_where_it_was(tmp_path: Path) -> None:
    program = (ROOT / "tests" / "examples" / "spark_counts.py").read_text(encoding="utf-8")
    with DaemonProcess(tmp_path / "data") as daemon:
        prepare(daemon.address, {"lines": 2, "counts": 1}, {"lines": 700})
        (tmp_path / "program.py").write_text(program.replace("127.0.0.1:7337", daemon.address), encoding="utf-8")
        for expected in (700, 50):
            done = subprocess.run(
                [sys.executable, "program.py"], capture_output=True, text=True, timeout=280, cwd=tmp_path
            )
            assert done.returncode == 0, done.stderr
            assert done.stdout.splitlines() == [f"topic {expected} new lines", f"parquet {expected} new lines"]
            run(produce(daemon.address, "lines", range(50)))
        told: dict[bytes, int] = {}
        for row in read(daemon.address, subscribe="counts").to_pylist():
            told[row["key"]] = json.loads(row["value"])["words"]
        assert sum(told.values()) == 750
