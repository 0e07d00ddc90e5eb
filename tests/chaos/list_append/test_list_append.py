"""A minute of list-append with a fixed seed; ``-m "not chaos"`` leaves it out.

``python -m tests.chaos.list_append`` runs others.
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tests.chaos.list_append.run import KINDS
from tests.chaos.processes import ROOT
from tests.chaos.registry import FAULTS

SEED = 2


@pytest.mark.chaos
@pytest.mark.timeout(300)
def test_a_minute_of_list_append(tmp_path: Path) -> None:
    options = ("--minutes", "1", "--seed", str(SEED), "--report", str(tmp_path))
    command = (sys.executable, "-m", "tests.chaos.list_append", *options)
    ended = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=280, check=False)
    assert ended.returncode == 0, ended.stdout[-6000:] + ended.stderr[-3000:]
    assert "VIOLATED" not in ended.stdout
    assert "committed 0" not in ended.stdout


def test_its_faults_are_of_the_chaos_runs() -> None:
    assert set(KINDS) <= set(FAULTS)
