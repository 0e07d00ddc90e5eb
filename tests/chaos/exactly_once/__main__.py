"""``python -m tests.chaos.exactly_once --minutes N --seed S``: exit 0 when every check holds, else 1 with ledgers kept."""

from __future__ import annotations

import asyncio
import sys
from random import Random

from tests.chaos.command_line import Trial, say, timed
from tests.chaos.exactly_once.checks import counts, violations
from tests.chaos.exactly_once.run import KINDS, Transformers, run
from tests.chaos.schedule import schedule


def main() -> int:
    """One run."""
    options = timed("tests.chaos.exactly_once", __doc__, KINDS).parse_args()
    trial = Trial.begin("tests.chaos.exactly_once", options, "exactly-once")
    world = Transformers(trial.ledgers, Random(f"world {trial.seed}"))
    steps = schedule(Random(f"schedule {trial.seed}"), trial.length_s, options.kinds or KINDS)
    trial.announce(steps)
    outcome = asyncio.run(run(world, steps, trial.length_s, say))
    return trial.judge(violations(outcome), counts(outcome), kinds=options.kinds)


if __name__ == "__main__":
    sys.exit(main())
