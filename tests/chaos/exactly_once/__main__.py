"""``python -m tests.chaos.exactly_once --minutes N --seed S``: exit 0 when every check holds, else 1 with ledgers kept."""

from __future__ import annotations

import argparse
import asyncio
import random
import shutil
import sys
import tempfile
from pathlib import Path
from random import Random

from tests.chaos.exactly_once.checks import counts, violations
from tests.chaos.exactly_once.run import KINDS, Transformers, run
from tests.chaos.schedule import schedule
from tests.chaos.verdict import table


def say(text: str) -> None:
    """Prints at once."""
    print(text, flush=True)


def main() -> int:
    """One run."""
    parser = argparse.ArgumentParser(prog="python -m tests.chaos.exactly_once", description=__doc__)
    parser.add_argument("--minutes", type=float, default=2.0, help="how long faults go on (default 2)")
    parser.add_argument("--seed", type=int, help="decides the schedule and everything drawn (default: a new one)")
    parser.add_argument("--kinds", default="", metavar="KIND,...", help=f"of {', '.join(KINDS)}")
    parser.add_argument("--report", type=Path, help="where ledgers go (default: a new directory in /tmp)")
    options = parser.parse_args()
    seed: int = random.SystemRandom().randrange(10**6) if options.seed is None else options.seed
    report: Path = options.report or Path(tempfile.mkdtemp(prefix=f"cohort-exactly-once-{seed}-"))
    ledgers = report / f"ledgers-{seed}"
    shutil.rmtree(ledgers, ignore_errors=True)
    ledgers.mkdir(parents=True)
    length_s = options.minutes * 60
    steps = schedule(Random(f"schedule {seed}"), length_s, options.kinds.split(",") if options.kinds else KINDS)
    kinds = ", ".join(sorted({step.kind for step in steps}))
    say(f"seed {seed}, {options.minutes:g} minutes, {len(steps)} faults of {kinds}")
    outcome = asyncio.run(run(Transformers(ledgers, Random(f"world {seed}")), steps, length_s, say))
    found = violations(outcome)
    say(table(found))
    say(counts(outcome))
    if any(found.values()):
        say(f"violated; ledgers: {ledgers}")
        say(f"again: python -m tests.chaos.exactly_once --minutes {options.minutes:g} --seed {seed}")
        return 1
    shutil.rmtree(ledgers)
    return 0


if __name__ == "__main__":
    sys.exit(main())
