"""``python -m tests.simulation.core``: histories of the group core, one a seed. Exit code 1 if an invariant failed."""

from __future__ import annotations

import argparse
import sys
import time

from tests.simulation.core.history import Verdict, run, shrink
from tests.simulation.core.plan import draw

LAST_LINES = 40


def main() -> int:
    """Runs histories until one fails."""
    parser = argparse.ArgumentParser(prog="python -m tests.simulation.core", description=__doc__)
    parser.add_argument("--seed", type=int, default=0, help="the first seed (default: %(default)s)")
    parser.add_argument("--steps", type=int, default=1000, help="steps before the faults stop (default: %(default)s)")
    parser.add_argument("--histories", type=int, default=1, help="how many seeds, one after the other (default: 1)")
    parser.add_argument("--trace", action="store_true", help="print the trace of each history, also of one that holds")
    arguments = parser.parse_args()
    began, began_cpu, steps = time.perf_counter(), time.process_time(), 0
    failed: Verdict | None = None
    for seed in range(arguments.seed, arguments.seed + arguments.histories):
        verdict = run(draw(seed, arguments.steps), traced=arguments.trace)
        steps += verdict.steps
        print("\n".join(verdict.trace), end="\n" if verdict.trace else "")
        if verdict.invariant:
            failed = verdict
            break
    took, took_cpu = time.perf_counter() - began, time.process_time() - began_cpu
    print(f"{steps:,} steps in {took:.1f} s: {steps / took:,.0f} a second, {steps / took_cpu:,.0f} a second of CPU")
    if failed is None:
        print(f"all invariants held in {arguments.histories} histories from seed {arguments.seed}")
        return 0
    print(
        f"seed {failed.plan.seed} of {arguments.steps} steps, step {failed.steps}: {failed.invariant}: {failed.message}"
    )
    short = shrink(failed)
    print(f"shrunk: {short.plan}, step {short.steps}: {short.message}")
    print("\n".join(short.trace[-LAST_LINES:]))
    return 1


if __name__ == "__main__":
    sys.exit(main())
