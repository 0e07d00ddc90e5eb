"""Makes a failing history small: fewer workloads, faults, clients and seconds, as long as it still fails in the same way."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace

from tests.simulation.plan import Plan

Fails = Callable[[Plan], bool]


def shrink(plan: Plan, fails: Fails, *, attempts: int = 200) -> Plan:
    """The smallest plan found within ``attempts`` histories for which ``fails`` still holds."""
    left = attempts
    smaller = True
    while smaller and left > 0:
        smaller = False
        for candidate in _candidates(plan):
            if left <= 0:
                break
            left -= 1
            if fails(candidate):
                plan, smaller = candidate, True
                break
    return plan


def _candidates(plan: Plan) -> Iterator[Plan]:
    """Smaller plans, the largest steps first."""
    for names in _fewer(plan.faults):
        yield replace(plan, faults=names)
    for names in _fewer(plan.workloads):
        if names:
            yield replace(plan, workloads=names)
    if plan.max_faults > 1:
        for limit in (1, 2, 3, 5, 8, 13, 21):
            if limit < plan.max_faults:
                yield replace(plan, max_faults=limit)
    if plan.fault_s > 2:
        yield replace(plan, fault_s=plan.fault_s / 2)
    if plan.records > 4:
        yield replace(plan, records=plan.records // 2)
    for name in ("consumers", "producers", "partitions"):
        if getattr(plan, name) > 1:
            yield replace(plan, **{name: 1})  # type: ignore[arg-type]
    if plan.split_chance:
        yield replace(plan, split_chance=0.0)
    if not plan.fifo:
        yield replace(plan, fifo=True)
    if plan.segment_bytes < 65_536:
        yield replace(plan, segment_bytes=65_536, compaction_ms=60_000)


def _fewer(names: tuple[str, ...]) -> Iterator[tuple[str, ...]]:
    if len(names) > 2:
        half = len(names) // 2
        yield names[:half]
        yield names[half:]
    for name in names:
        yield tuple(other for other in names if other != name)
