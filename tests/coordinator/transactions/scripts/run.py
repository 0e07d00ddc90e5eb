"""Runs scripts: ``python -m tests.coordinator.transactions.scripts.run [--rewrite] [FILE...]``, as ``tests.scripts.run``."""

from __future__ import annotations

import sys
from pathlib import Path

from tests.coordinator.transactions.scripts.world import World
from tests.scripts.run import Runner

FOLDER = Path(__file__).parent
SCRIPTS = sorted(FOLDER.glob("*/*.txt"))
RUNNER = Runner(SCRIPTS, World)
run, record = RUNNER.run, RUNNER.record


if __name__ == "__main__":
    sys.exit(RUNNER.main(sys.argv[1:]))
