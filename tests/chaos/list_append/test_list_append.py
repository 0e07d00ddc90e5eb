"""A minute of list-append with a fixed seed; ``-m "not chaos"`` leaves it out.

``python -m tests.chaos.list_append`` runs others.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.chaos.command_line import output_of
from tests.chaos.list_append.run import KINDS
from tests.chaos.registry import FAULTS

SEED = 2


@pytest.mark.chaos
@pytest.mark.timeout(300)
def test_a_minute_of_list_append(tmp_path: Path) -> None:
    output = output_of("tests.chaos.list_append", "--minutes", "1", "--seed", str(SEED), report=tmp_path, timeout_s=280)
    assert "committed 0" not in output


def test_its_faults_are_of_the_chaos_runs() -> None:
    assert set(KINDS) <= set(FAULTS)
