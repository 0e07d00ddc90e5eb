"""``python -m tests.simulation.transactions``: histories of the transaction core, one a seed. Exit code 1 if one fails."""

from __future__ import annotations

import argparse
import sys
import time

from tests.simulation.transactions.history import Verdict, run, shrink
from tests.simulation.transactions.plan import draw

LAST_LINES = 60


def main() -> int:
    """Runs histories until one fails, so many are done, or so many steps of the core."""
    parser = argparse.ArgumentParser(prog="python -m tests.simulation.transactions", description=__doc__)
    parser.add_argument("--seed", type=int, default=0, help="the first seed (default: %(default)s)")
    parser.add_argument("--steps", type=int, default=1000, help="steps before the faults stop (default: %(default)s)")
    parser.add_argument("--histories", type=int, default=1, help="how many seeds, one after the other (default: 1)")
    parser.add_argument("--core-steps", type=int, default=0, help="as many seeds as make so many steps of the core")
    parser.add_argument("--trace", action="store_true", help="print the trace of each history, also of one that holds")
    arguments = parser.parse_args()
    began, began_cpu, steps, histories = time.perf_counter(), time.process_time(), 0, 0
    failed: Verdict | None = None
    while failed is None and (steps < arguments.core_steps or histories < arguments.histories):
        verdict = run(draw(arguments.seed + histories, arguments.steps), traced=arguments.trace)
        histories += 1
        steps += verdict.steps
        print("\n".join(verdict.trace), end="\n" if verdict.trace else "")
        if verdict.invariant:
            failed = verdict
    took, took_cpu = time.perf_counter() - began, time.process_time() - began_cpu
    print(f"{steps:,} steps of the core in {took:.1f} s: {steps / took:,.0f} a second, {steps / took_cpu:,.0f} of CPU")
    if failed is None:
        print(f"all invariants held in {histories} histories from seed {arguments.seed}")
        return 0
    print(f"seed {failed.plan.seed}, step {failed.steps}: {failed.invariant}: {failed.message}")
    print(failed.plan)
    short = shrink(failed)
    print(f"shrunk: {short.plan}, step {short.steps}: {short.message}")
    print("\n".join(short.trace[-LAST_LINES:]))
    return 1


if __name__ == "__main__":
    sys.exit(main())
