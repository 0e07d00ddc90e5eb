"""What a safeguard is that can be switched off, and the list of all of them; see ``ablations``."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, replace
from typing import Final

from tests.simulation.plan import Plan, draw
from tests.simulation.registry import FAULTS, WORKLOADS

Off = Callable[[], AbstractContextManager[None]]


@dataclass(frozen=True, slots=True)
class Ablation:
    """A safeguard. One of ``invariants`` must fail without it."""

    name: str
    what: str
    invariants: tuple[str, ...]
    off: Off
    faults: tuple[str, ...] = ()
    workloads: tuple[str, ...] = ()
    assignor: str = ""

    def plan_of(self, seed: int) -> Plan:
        """The seed's plan; with what this safeguard is about, where chance alone would take hundreds of histories."""
        plan = draw(seed, tuple(WORKLOADS), tuple(FAULTS))
        if self.faults:
            plan = replace(plan, faults=self.faults, segment_bytes=1024, compaction_ms=500)
        if self.assignor:
            plan = replace(plan, assignor=self.assignor)
        return replace(plan, workloads=self.workloads) if self.workloads else plan


ABLATIONS: Final[dict[str, Ablation]] = {}


def safeguard(
    what: str, *invariants: str, faults: tuple[str, ...] = (), workloads: tuple[str, ...] = (), assignor: str = ""
) -> Callable[[Callable[[], Iterator[None]]], Off]:
    """Registers a function that replaces a safeguard until it is resumed."""

    def register(function: Callable[[], Iterator[None]]) -> Off:
        off = contextmanager(function)
        ABLATIONS[function.__name__] = Ablation(function.__name__, what, invariants, off, faults, workloads, assignor)
        return off

    return register
