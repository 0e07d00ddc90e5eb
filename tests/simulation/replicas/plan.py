"""What a history consists of: everything follows from the plan, and the plan from a seed."""

from __future__ import annotations

from dataclasses import dataclass, replace
from random import Random
from typing import Final

NETWORK: Final = ("lost", "doubled", "unknown outcomes", "stale mirrors")
"""What becomes of messages between nodes and with the metadata store."""

EVENTS: Final = (
    "kills",  # a process ends, its machine keeps what was written
    "power cuts",  # and any part of what was not synced
    "lossy disks",  # a disk that had said it has something has not
    "replaced disks",
    "old images",  # a directory of some time ago comes back
    "pauses",  # a node stands still, for longer than its lease, and goes on as leader, or as controller
    "early lease loss",
    "refused writes",
    "drains",  # a node hands over what it leads, and then stops
    "compacted metadata",  # deltas are forgotten that a mirror has not seen yet
)
"""What befalls the system from time to time."""

WORK: Final = (
    "deletions",  # DeleteRecords
    "compaction",
    "reassignments",
    "new topics",  # the topic is deleted and made again under its name
)
"""What programs and administrators do beside appending."""

OS_FLUSH: Final = "os flush"
"""Acknowledged is what the machine's memory has: a power cut makes a node unclean."""

BEHAVIOURS: Final = (*NETWORK, *EVENTS, *WORK, OS_FLUSH)


@dataclass(frozen=True, slots=True)
class Plan:
    """One history: the seed of its random stream, what may happen in it, and how much of it there is."""

    seed: int
    behaviours: tuple[str, ...]
    nodes: int
    replicas: int
    min_isr: int
    event_gap: int
    """Mean number of steps between two events."""
    loss: float
    """How many messages the network loses, and as many it doubles."""
    lag_ms: int
    """How long an in-sync replica may be behind."""
    steps: int
    """After so many the faults stop and everything has to settle."""

    def without(self, name: str) -> Plan:
        """The same history in a quieter world."""
        return replace(self, behaviours=tuple(one for one in self.behaviours if one != name))


def draw(seed: int, steps: int, wanted: tuple[str, ...] = ()) -> Plan:
    """The plan of a seed. Each seed draws which behaviours exist at all: a fault that is rare among many others is common
    among a few. ``wanted`` are there in any case."""
    random = Random(f"replicas {seed}")
    share = random.choice((0.15, 0.3, 0.6))
    behaviours = tuple(name for name in BEHAVIOURS if random.random() < share or name in wanted)
    nodes = random.choice((3, 3, 3, 4, 5))
    replicas, min_isr = random.choice(((3, 2), (3, 2), (3, 2), (2, 1), (3, 1)))
    return Plan(
        seed=seed,
        behaviours=behaviours,
        nodes=nodes,
        replicas=replicas,
        min_isr=min_isr,
        event_gap=random.choice((15, 40, 120)),
        loss=random.choice((0.02, 0.08, 0.2)),
        lag_ms=random.choice((250, 600, 600)),
        steps=steps,
    )
