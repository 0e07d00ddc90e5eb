"""What a safeguard is that can be switched off, and the list of all of them; see ``ablations``."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, replace
from typing import Any, Final

from tests.simulation.plan import Plan, draw, draw_cluster
from tests.simulation.registry import CLUSTER_FAULTS, CLUSTER_WORKLOADS, FAULTS, WORKLOADS

Off = Callable[[], AbstractContextManager[None]]


@dataclass(frozen=True, slots=True)
class Ablation:
    """A safeguard. One of ``invariants`` must fail without it."""

    name: str
    what: str
    invariants: tuple[str, ...]
    off: Off
    changes: Mapping[str, Any]
    """Fields of the plan that this safeguard is about, where chance alone would take hundreds of histories."""
    first: int = 0
    """The seed to begin with: of a history that is known to miss the safeguard, where few do."""

    def plan_of(self, seed: int) -> Plan:
        """The seed's plan with the changes; one that names faults has small segments and is compacted often.

        Of several nodes it means the same when workloads or faults are added that it does not name.
        """
        if (nodes := self.changes.get("nodes", 1)) > 1:
            workloads, faults = self.changes.get("workloads"), self.changes.get("faults")
            plan = draw_cluster(seed, workloads or tuple(CLUSTER_WORKLOADS), faults or tuple(CLUSTER_FAULTS), nodes)
            return replace(plan, **self.changes)
        plan = replace(draw(seed, tuple(WORKLOADS), tuple(FAULTS)), checkpoint_ms=500, members_per_slice=2_000)
        if "faults" in self.changes:
            plan = replace(plan, segment_bytes=1024, compaction_ms=500)
        return replace(plan, **self.changes)


ABLATIONS: Final[dict[str, Ablation]] = {}


def safeguard(
    what: str, *invariants: str, first: int = 0, **changes: Any
) -> Callable[[Callable[[], Iterator[None]]], Off]:
    """Registers a function that replaces a safeguard until it is resumed. ``changes`` are fields of the plan, ``first`` is
    the seed to begin with."""

    def register(function: Callable[[], Iterator[None]]) -> Off:
        off = contextmanager(function)
        ABLATIONS[function.__name__] = Ablation(function.__name__, what, invariants, off, changes, first)
        return off

    return register
