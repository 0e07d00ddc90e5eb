"""``cohort demo --spark``: files, a query that is stopped in the middle, windows in a topic and in Parquet."""

from __future__ import annotations

import json
import os
import re
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from tests.daemon_process import DaemonProcess
from tests.integration.cohort_command import ROOT, objects, output

pytestmark = [pytest.mark.spark, pytest.mark.timeout(1800)]


def test_every_line_is_counted_in_its_minute_though_the_query_is_stopped_in_the_middle(tmp_path: Path) -> None:
    files = tmp_path / "files"
    files.mkdir()
    for number in range(20):
        lines = "".join(
            f"line {each} {'ERROR here' if each % 10 == 0 else 'is fine'}\n" for each in range(9000 + number * 37)
        )
        (files / f"file-{number}.log").write_text(lines, encoding="utf-8")
    events = objects("demo", "--spark", str(files), timeout_s=1700)
    result = events[-1]
    produced = sum(9000 + number * 37 for number in range(20))
    assert (result["produced"], result["delivered"], result["lost"], result["lag"]) == (produced, produced, 0, 0)
    assert result["wrong_minutes"] == []
    assert result["words"] == 4 * produced
    assert result["errors"] == sum(-(-(9000 + number * 37) // 10) for number in range(20))
    assert 0 < result["final_minutes"] < result["minutes"]
    (stopped,) = [event for event in events if event["event"] == "stopped"]
    assert 0 < stopped["lines"] < produced


def test_the_session_of_the_page_on_spark_runs_and_its_program_goes_on_where_it_was(tmp_path: Path) -> None:
    """As a newcomer follows it: nothing but an empty directory, the commands and the program."""
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    section = (ROOT / "docs" / "spark.md").read_text(encoding="utf-8")
    (session,) = [block for block in re.findall(r"^```sh\n(.*?)^```", section, re.M | re.S) if "counts.py" in block]
    blocks = re.findall(r"^```python\n(.*?)^```", section, re.M | re.S)
    (program,) = [block for block in blocks if 'spark_session("counts")' in block]
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{probe.getsockname()[1]}"
    assert "127.0.0.1:7337" in program
    (tmp_path / "counts.py").write_text(program.replace("127.0.0.1:7337", address), encoding="utf-8")
    (tmp_path / "README.md").write_text(readme, encoding="utf-8")
    lines = len(readme.splitlines())
    again = "seq 1 50 | cohort produce lines\npython counts.py"
    shell = subprocess.run(
        ["bash", "-c", f"set -emo pipefail; trap 'kill %1; wait' EXIT\n{session}\n{again}"],
        capture_output=True,
        text=True,
        timeout=1700,
        cwd=tmp_path,
        env=os.environ
        | {
            "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}",
            "COHORT_PORT": address.rpartition(":")[2],
            "COHORT_BOOTSTRAP": address,
        },
    )
    assert shell.returncode == 0, shell.stderr
    for expected in (lines, 50):
        for name in ("topic", "parquet"):
            assert f"{name} {expected} new lines" in shell.stdout
    (first,) = [json.loads(line) for line in shell.stdout.splitlines() if line.startswith("{")]
    assert first["lines"] == lines


def test_the_program_that_is_exactly_once_runs_and_goes_on_where_it_was(tmp_path: Path) -> None:
    section = (ROOT / "docs" / "spark.md").read_text(encoding="utf-8")
    blocks = re.findall(r"^```python\n(.*?)^```", section, re.M | re.S)
    (program,) = [block for block in blocks if 'spark_session("capitals")' in block]
    with DaemonProcess(tmp_path / "data") as daemon:
        (tmp_path / "capitals.py").write_text(program.replace("127.0.0.1:7337", daemon.address), encoding="utf-8")
        for first, last in ((1, 30), (31, 50)):
            lines = "\n".join(f"line {number}" for number in range(first, last + 1))
            if first == 1:
                output("topics", "create", "lines", "--partitions", "4", address=daemon.address)
            output("produce", "lines", address=daemon.address, stdin=lines.encode())
            command = [sys.executable, "capitals.py"]
            ended = subprocess.run(command, capture_output=True, text=True, timeout=600, cwd=tmp_path)
            assert ended.returncode == 0, ended.stderr
            for name in ("capitals", "kept"):
                assert f"{name} {last - first + 1} new lines" in ended.stdout
        for topic in ("capitals", "kept"):
            found = objects(
                *("consume", topic, "--from-beginning", "--max-messages", "50"), address=daemon.address, timeout_s=300
            )
            assert sorted(record["value"] for record in found) == sorted(f"LINE {number}" for number in range(1, 51))
