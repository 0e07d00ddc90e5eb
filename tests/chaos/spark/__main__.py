"""``python -m tests.chaos.spark --kills N --seed S``: exit 0 when all is there once, else 1 with all files kept."""

from __future__ import annotations

import os
import shutil
import sys
from random import Random
from time import perf_counter

from tests.chaos.command_line import chosen, say, seeded
from tests.chaos.spark.pipeline import EXACTLY_ONCE, Pipeline
from tests.chaos.spark.run import Killed, Violated, rounds
from tests.chaos.spark.victims import VICTIMS, drawn
from tests.integration.spark.ground import Ground


def table(kills: list[Killed]) -> str:
    """Kills by victim."""
    lines = [f"{'killed':21s} times  query failed  seconds to catch up: median, most"]
    for victim in VICTIMS:
        those = [each for each in kills if each.victim == victim]
        if those:
            took = sorted(each.caught_up_s for each in those)
            failed = sum(each.failures for each in those)
            lines.append(f"{victim:21s} {len(those):5d}  {failed:12d}  {took[len(took) // 2]:12.1f}, {took[-1]:.1f}")
    return "\n".join(lines)


def main() -> int:
    """One run."""
    parser = seeded("tests.chaos.spark", __doc__)
    parser.add_argument("--kills", type=int, default=200, help="default 200")
    parser.add_argument("--delivery", default=EXACTLY_ONCE, help="at-least-once: what the checks find then")
    options = parser.parse_args()
    seed, report = chosen(options, "spark")
    os.environ.setdefault("JAVA_TOOL_OPTIONS", "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC")
    draw = Random(f"spark {seed}")
    began = perf_counter()
    try:
        with Ground(report) as ground:
            pipeline = Pipeline(ground, options.delivery)
            kills = rounds(pipeline, drawn(draw, options.kills), draw, say)
            fed = pipeline.fed
    except Violated as error:
        say(f"violated: {error}\nseed {seed}; logs, data and checkpoint: {report}")
        return 1
    say(table(kills))
    say(
        f"seed {seed}: {len(kills)} kills in {perf_counter() - began:.0f} s, {fed} rows: 0 lost, 0 twice, offsets equal"
    )
    shutil.rmtree(report)
    return 0


if __name__ == "__main__":
    sys.exit(main())
