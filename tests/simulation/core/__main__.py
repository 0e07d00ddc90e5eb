"""``python -m tests.simulation.core``: histories of the group core, one a seed. Exit code 1 if an invariant fails."""

from __future__ import annotations

import sys

from tests.simulation import rings
from tests.simulation.core.history import run, shrink
from tests.simulation.core.plan import draw

if __name__ == "__main__":
    sys.exit(rings.main("tests.simulation.core", __doc__, draw, run, shrink))
