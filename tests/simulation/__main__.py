"""``python -m tests.simulation``: runs histories and tells which invariants broke; with ``--seed``, the story of one.

Exit 0 when every invariant held (with ``--ablation``: when the right one broke), 1 otherwise.
"""

from __future__ import annotations

import argparse
import os
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager
from multiprocessing import Pool

from tests.simulation.ablations import ABLATIONS
from tests.simulation.plan import Plan, to_json
from tests.simulation.shrink import shrink
from tests.simulation.simulate import Outcome, plan_of, simulate
from tests.simulation.story import lines


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs the command line; returns the exit status."""
    command = argparse.ArgumentParser(prog="python -m tests.simulation", description=__doc__)
    command.add_argument("--seed", type=int, help="tell the story of this seed")
    command.add_argument("--histories", type=int, default=1000, metavar="K", help="how many seeds to run (1000)")
    command.add_argument("--start", type=int, default=0, metavar="S", help="the first seed (0)")
    command.add_argument("--nodes", type=int, default=1, choices=(1, 3), help="how many daemons there are (1)")
    command.add_argument("--shrink", action="store_true", help="make failing histories small and tell them")
    command.add_argument(
        "--ablation", choices=[*ABLATIONS], metavar="NAME", help="switch a safeguard off; see ablations.py"
    )
    command.add_argument("--processes", type=int, default=os.cpu_count() or 1, metavar="N", help="how many at once")
    options = command.parse_args(arguments)
    if options.seed is not None:
        return _one(options.seed, options.ablation, options.shrink, options.nodes)
    return _many(range(options.start, options.start + options.histories), options)


def _without(ablation: str | None) -> list[AbstractContextManager[None]]:
    return [ABLATIONS[ablation].off()] if ablation is not None else []


def _plan(seed: int, ablation: str | None, nodes: int) -> Plan:
    return ABLATIONS[ablation].plan_of(seed) if ablation is not None else plan_of(seed, nodes)


def _one(seed: int, ablation: str | None, shrinking: bool, nodes: int) -> int:
    plan = _plan(seed, ablation, nodes)
    outcome = simulate(plan, without=_without(ablation))
    if shrinking and outcome.violations:
        plan = smallest(outcome, ablation)
        print(f"shrunk to {to_json(plan)}\n")
    _tell(plan, ablation)
    return 1 if outcome.violations else 0


def smallest(outcome: Outcome, ablation: str | None = None) -> Plan:
    """A smaller plan that breaks the first invariant that ``outcome`` broke."""
    wanted = outcome.broken[0]
    return shrink(outcome.plan, lambda plan: wanted in simulate(plan, without=_without(ablation)).broken)


def _tell(plan: Plan, ablation: str | None) -> None:
    outcome = simulate(plan, verbose=True, without=_without(ablation))
    for line in lines(outcome.events):
        print(line)
    print(
        f"\nseed {plan.seed}: {outcome.steps} steps, {outcome.virtual_s - 1000:.1f} virtual seconds, {outcome.trace_hash}"
    )
    _verdict(outcome)


def _verdict(outcome: Outcome) -> None:
    for violation in outcome.violations:
        print(f"  broken: {violation.invariant}: {violation.text}")
    if not outcome.violations:
        print("  every invariant held")


def _run(job: tuple[int, str | None, int]) -> Outcome:
    seed, ablation, nodes = job
    outcome = simulate(_plan(seed, ablation, nodes), without=_without(ablation))
    return outcome.without_events()


def _outcomes(seeds: range, options: argparse.Namespace) -> Iterator[Outcome]:
    jobs, processes = [(seed, options.ablation, options.nodes) for seed in seeds], options.processes
    if processes == 1:
        yield from map(_run, jobs)
        return
    with Pool(processes) as pool:
        yield from pool.imap(_run, jobs, chunksize=4)


def _many(seeds: range, options: argparse.Namespace) -> int:
    started = time.perf_counter()
    failed: list[Outcome] = []
    steps = faults = histories = 0
    for outcome in _outcomes(seeds, options):
        histories += 1
        steps += outcome.steps
        faults += outcome.injected
        if outcome.violations:
            failed.append(outcome)
            print(f"seed {outcome.plan.seed}")
            _verdict(outcome)
            if options.ablation and set(outcome.broken) & set(ABLATIONS[options.ablation].invariants):
                print(f"caught after {histories} histories")
                return 0
    took_s = time.perf_counter() - started
    print(
        f"{histories} histories, {steps} steps, {faults} faults in {took_s:.1f} s "
        f"({histories / took_s:.1f} histories/s): {len(failed)} failed"
    )
    if options.shrink:
        for outcome in failed[:3]:
            print(f"\nseed {outcome.plan.seed}, shrunk:")
            _tell(smallest(outcome, options.ablation), options.ablation)
    return 1 if failed or options.ablation else 0


if __name__ == "__main__":
    sys.exit(main())
