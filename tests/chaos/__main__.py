"""``python -m tests.chaos --minutes N --seed S``: exit 0 when every check holds, else 1 with ledgers kept."""

from __future__ import annotations

import argparse
import asyncio
import sys

from tests.chaos.checks import violations
from tests.chaos.command_line import Trial, say, several, timed
from tests.chaos.groups import KINDS
from tests.chaos.reading import read_history
from tests.chaos.registry import FAULTS
from tests.chaos.run import plan, run
from tests.chaos.schedule import schedule
from tests.chaos.timeline import timeline
from tests.chaos.verdict import counts


def _members(text: str) -> tuple[int, int]:
    low, _, high = text.partition("..")
    bounds = int(low), int(high or low)
    if not 1 <= bounds[0] <= bounds[1] <= 40:
        raise argparse.ArgumentTypeError(f"{text!r} is not LOW..HIGH from 1 to 40")
    return bounds


def _parsed() -> argparse.Namespace:
    parser = timed("tests.chaos", __doc__, FAULTS)
    parser.add_argument(
        "--members", type=_members, default=(4, 8), metavar="LOW..HIGH", help="default 4..8, at most 40"
    )
    parser.add_argument("--groups", **several(KINDS, "group"))  # at most 8 of them
    return parser.parse_args()


def main() -> int:
    """One run."""
    options = _parsed()
    trial = Trial.begin("tests.chaos", options, "chaos")
    low, high = options.members
    world, draw = plan(trial.seed, trial.ledgers, low, high, options.groups)
    steps = schedule(draw, trial.length_s, options.kinds)
    trial.announce(steps)
    say(f"groups: {', '.join(world.groups)}")
    asyncio.run(run(world, steps, trial.length_s, say))
    history = read_history(trial.ledgers)
    picture = trial.report / f"timeline-{trial.seed}.svg"
    picture.write_text(timeline(history, f"seed {trial.seed}"), encoding="utf-8")
    judged = f"{counts(history)}\nseed {trial.seed}; timeline: {picture}"
    members = f"{low}..{high}"
    return trial.judge(violations(history), judged, members=members, kinds=options.kinds, groups=options.groups)


if __name__ == "__main__":
    sys.exit(main())
