"""``python -m tests.chaos.list_append --minutes N --seed S``: exit 0 when every check holds, else 1 with ledgers kept."""

from __future__ import annotations

import argparse
import asyncio
import random
import shutil
import sys
import tempfile
from pathlib import Path
from random import Random

from tests.chaos.list_append.checks import counts, violations
from tests.chaos.list_append.history import read_history
from tests.chaos.list_append.run import KINDS, Workers, run
from tests.chaos.schedule import schedule
from tests.chaos.verdict import table


def say(text: str) -> None:
    """Prints at once."""
    print(text, flush=True)


def main() -> int:
    """One run."""
    parser = argparse.ArgumentParser(prog="python -m tests.chaos.list_append", description=__doc__)
    parser.add_argument("--minutes", type=float, default=2.0, help="how long faults go on (default 2)")
    parser.add_argument("--seed", type=int, help="decides the schedule and everything drawn (default: a new one)")
    parser.add_argument("--workers", type=int, default=5, help="default 5")
    parser.add_argument("--kinds", default="", metavar="KIND,...", help=f"of {', '.join(KINDS)}")
    parser.add_argument("--report", type=Path, help="where ledgers go (default: a new directory in /tmp)")
    options = parser.parse_args()
    seed: int = random.SystemRandom().randrange(10**6) if options.seed is None else options.seed
    report: Path = options.report or Path(tempfile.mkdtemp(prefix=f"cohort-list-append-{seed}-"))
    ledgers = report / f"ledgers-{seed}"
    shutil.rmtree(ledgers, ignore_errors=True)
    ledgers.mkdir(parents=True)
    length_s = options.minutes * 60
    kinds = options.kinds.split(",") if options.kinds else KINDS
    world = Workers(ledgers, Random(f"world {seed}"), options.workers)
    steps = schedule(Random(f"schedule {seed}"), length_s, kinds)
    say(
        f"seed {seed}, {options.minutes:g} minutes, {len(steps)} faults of {', '.join(sorted({s.kind for s in steps}))}"
    )
    asyncio.run(run(world, steps, length_s, say))
    history = read_history(ledgers)
    found = violations(history)
    say(table(found))
    say(counts(history))
    if any(found.values()):
        say(f"violated; ledgers: {ledgers}")
        say(f"again: python -m tests.chaos.list_append --minutes {options.minutes:g} --seed {seed}")
        return 1
    shutil.rmtree(ledgers)
    return 0


if __name__ == "__main__":
    sys.exit(main())
