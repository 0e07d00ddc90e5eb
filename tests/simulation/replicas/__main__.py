"""``python -m tests.simulation.replicas``: histories of replicas, one a seed. Exit code 1 if an invariant fails."""

from __future__ import annotations

import sys

from tests.simulation import rings
from tests.simulation.replicas.history import run, shrink
from tests.simulation.replicas.plan import draw

if __name__ == "__main__":
    sys.exit(rings.main("tests.simulation.replicas", __doc__, draw, run, shrink))
