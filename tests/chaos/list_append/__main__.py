"""``python -m tests.chaos.list_append --minutes N --seed S``: exit 0 when every check holds, else 1 with ledgers kept."""

from __future__ import annotations

import asyncio
import sys
from random import Random

from tests.chaos.command_line import Trial, say, timed
from tests.chaos.list_append.checks import counts, violations
from tests.chaos.list_append.history import read_history
from tests.chaos.list_append.run import KINDS, Workers, run
from tests.chaos.schedule import schedule


def main() -> int:
    """One run."""
    parser = timed("tests.chaos.list_append", __doc__, KINDS)
    parser.add_argument("--workers", type=int, default=5, help="default 5")
    options = parser.parse_args()
    trial = Trial.begin("tests.chaos.list_append", options, "list-append")
    world = Workers(trial.ledgers, Random(f"world {trial.seed}"), options.workers)
    steps = schedule(Random(f"schedule {trial.seed}"), trial.length_s, options.kinds or KINDS)
    trial.announce(steps)
    asyncio.run(run(world, steps, trial.length_s, say))
    history = read_history(trial.ledgers)
    return trial.judge(violations(history), counts(history), kinds=options.kinds, workers=options.workers)


if __name__ == "__main__":
    sys.exit(main())
