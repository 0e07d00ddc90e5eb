"""What a history consists of: everything follows from the plan, and the plan from a seed."""

from __future__ import annotations

from dataclasses import dataclass, replace
from random import Random
from typing import Final

from coordinator.transactions.config import TransactionConfig

LOOPS: Final = "loops"
NUMBERED: Final = "numbered"
JOBS: Final = "jobs"
LEAVERS: Final = "leavers"
KEEPERS: Final = "keepers"
WORKLOADS: Final = (LOOPS, NUMBERED, JOBS, LEAVERS, KEEPERS)
"""Consume, transform, produce; one producer that numbers its work; a job with members, as Spark's; producers that are gone
in the middle of a transaction, whose ids no other takes over; loops of Kafka's producers from before KIP-890."""

NETWORK: Final = ("lost", "doubled", "late")
"""What the network does to a message."""

EVENTS: Final = (
    "crashes",  # of one node or of all at once: what was not synced is kept up to any point
    "drops",  # the coordinator's shard is built anew from its log, connections stay
    "refused writes",  # a leader's log takes back what was not synced
    "killed clients",
    "stalled clients",  # for longer than the transaction timeout, perhaps
    "rivals",  # another instance takes the transactional id over
    "administrators",  # abort transactions, with and without fence
    "wall steps",
    "slow disks",
    "full disks",  # a participant takes no writes and no markers for seconds
    "gaps of producer ids",
)
"""What befalls the system from time to time."""

EXPIRY: Final = "expiry"
"""Transactional ids that are not used for a while are forgotten. Versions are forgotten with them, so that none is numbered
in these histories."""

EXPIRATION_MS: Final = 1_500
EXPIRY_CHECK_MS: Final = 300

BEHAVIOURS: Final = (*NETWORK, *EVENTS, EXPIRY)


@dataclass(frozen=True, slots=True)
class Plan:
    """One history: the seed of all its random streams, what may happen in it, and how much of it there is."""

    seed: int
    workloads: tuple[str, ...]
    behaviours: tuple[str, ...]
    fault_rate: float
    """How many messages the network disturbs, of all."""
    event_gap_ms: int
    """Mean time between two events."""
    timeout_ms: int
    """Transaction timeout of all producers."""
    last_epoch: int
    carried_ms: int
    """How long partitions are carried for a transaction that is not written to."""
    steps: int
    """After so many steps of the core the faults stop and everything has to settle."""

    def without(self, name: str) -> Plan:
        """The same history in a quieter world."""
        return replace(self, behaviours=tuple(one for one in self.behaviours if one != name))

    @property
    def config(self) -> TransactionConfig:
        """How the coordinator of the history is configured."""
        config = TransactionConfig(last_epoch=self.last_epoch, carried_ms=self.carried_ms)
        if EXPIRY not in self.behaviours:
            return config
        return replace(
            config,
            transactional_id_expiration_ms=EXPIRATION_MS,
            transactional_id_expiration_check_interval_ms=EXPIRY_CHECK_MS,
        )


def draw(seed: int, steps: int) -> Plan:
    """The plan of a seed. Each seed draws which behaviours exist at all: a fault that is rare among many others is common
    among a few. Epochs end after 3 in most seeds, so that producer ids change all the time."""
    random = Random(f"transactions {seed}")
    share = random.choice((0.2, 0.4, 0.7))
    workloads = tuple(name for name in WORKLOADS if name != KEEPERS and random.random() < 0.5) or (LOOPS,)
    behaviours = tuple(name for name in BEHAVIOURS if random.random() < share)
    if EXPIRY in behaviours:
        workloads = tuple(name for name in workloads if name in (LOOPS, LEAVERS)) or (LOOPS, LEAVERS)
    if seed % 5 == 0:  # the others are as they were before there was this one
        workloads += (KEEPERS,)
    return Plan(
        seed=seed,
        workloads=workloads,
        behaviours=behaviours,
        fault_rate=random.choice((0.02, 0.06, 0.15)),
        event_gap_ms=random.choice((150, 400, 1500)),
        timeout_ms=random.choice((300, 1000, 5000)),
        last_epoch=random.choice((3, 3, 3, 3, 1, 1, 32_766)),
        carried_ms=random.choice((5, 50, 500, 5000)),
        steps=steps,
    )
