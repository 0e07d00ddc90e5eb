"""``python -m tests.chaos --minutes N --seed S``: exit 0 when every check holds, else 1 with ledgers kept."""

from __future__ import annotations

import argparse
import asyncio
import random
import shutil
import sys
import tempfile
from collections.abc import Container
from pathlib import Path

from tests.chaos.checks import violations
from tests.chaos.groups import KINDS
from tests.chaos.reading import read_history
from tests.chaos.registry import FAULTS
from tests.chaos.run import plan, run
from tests.chaos.schedule import schedule
from tests.chaos.timeline import timeline
from tests.chaos.verdict import counts, table


def say(text: str) -> None:
    """Prints at once."""
    print(text, flush=True)


def _members(text: str) -> tuple[int, int]:
    low, _, high = text.partition("..")
    bounds = int(low), int(high or low)
    if not 1 <= bounds[0] <= bounds[1] <= 40:
        raise argparse.ArgumentTypeError(f"{text!r} is not LOW..HIGH from 1 to 40")
    return bounds


def _kinds(text: str) -> list[str]:
    return _known(text, FAULTS, "fault")


def _groups(text: str) -> list[str]:
    return _known(text, KINDS, "group")


def _known(text: str, known: Container[str], what: str) -> list[str]:
    kinds = text.split(",")
    unknown = [kind for kind in kinds if kind not in known]
    if unknown:
        raise argparse.ArgumentTypeError(f"{', '.join(unknown)} is no kind of {what}")
    return kinds


def _parsed() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m tests.chaos", description=__doc__)
    parser.add_argument("--minutes", type=float, default=2.0, help="how long faults go on (default 2)")
    parser.add_argument("--seed", type=int, help="decides the schedule and everything drawn (default: a new one)")
    parser.add_argument(
        "--members", type=_members, default=(4, 8), metavar="LOW..HIGH", help="default 4..8, at most 40"
    )
    parser.add_argument("--kinds", type=_kinds, default=[], metavar="KIND,...", help=f"of {', '.join(FAULTS)}")
    parser.add_argument(
        "--groups", type=_groups, default=[], metavar="KIND,...", help=f"of {', '.join(KINDS)}, at most 8 of them"
    )
    parser.add_argument("--report", type=Path, help="where timeline and ledgers go (default: a new directory in /tmp)")
    return parser.parse_args()


def main() -> int:
    """One run."""
    options = _parsed()
    seed: int = random.SystemRandom().randrange(10**6) if options.seed is None else options.seed
    report: Path = options.report or Path(tempfile.mkdtemp(prefix=f"cohort-chaos-{seed}-"))
    ledgers = report / f"ledgers-{seed}"
    shutil.rmtree(ledgers, ignore_errors=True)
    ledgers.mkdir(parents=True)
    low, high = options.members
    length_s = options.minutes * 60
    world, draw = plan(seed, ledgers, low, high, options.groups)
    steps = schedule(draw, length_s, options.kinds)
    kinds = sorted({step.kind for step in steps})
    say(f"seed {seed}, {options.minutes:g} minutes, {len(steps)} faults of {len(kinds)} kinds: {', '.join(kinds)}")
    say(f"groups: {', '.join(world.groups)}")
    asyncio.run(run(world, steps, length_s, say))
    history = read_history(ledgers)
    found = violations(history)
    picture = report / f"timeline-{seed}.svg"
    picture.write_text(timeline(history, f"seed {seed}"), encoding="utf-8")
    say(table(found))
    say(counts(history))
    say(f"seed {seed}; timeline: {picture}")
    if any(found.values()):
        only = f" --kinds {','.join(options.kinds)}" if options.kinds else ""
        only += f" --groups {','.join(options.groups)}" if options.groups else ""
        say(f"violated; ledgers: {ledgers}")
        say(f"again: python -m tests.chaos --minutes {options.minutes:g} --seed {seed} --members {low}..{high}{only}")
        return 1
    shutil.rmtree(ledgers)
    return 0


if __name__ == "__main__":
    sys.exit(main())
