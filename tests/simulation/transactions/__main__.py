"""``python -m tests.simulation.transactions``: histories of the transaction core, one a seed. Exit code 1 if one fails."""

from __future__ import annotations

import sys

from tests.simulation import rings
from tests.simulation.transactions.history import run, shrink
from tests.simulation.transactions.plan import draw

if __name__ == "__main__":
    sys.exit(rings.main("tests.simulation.transactions", __doc__, draw, run, shrink))
