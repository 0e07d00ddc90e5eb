"""What a history consists of: everything follows from the plan, and the plan from a seed."""

from __future__ import annotations

from dataclasses import dataclass, replace
from random import Random
from typing import Final

from coordinator.groups.config import GroupConfig

NETWORK: Final = ("lost requests", "lost replies", "duplicates", "delays")
"""What a network does to one request."""

EVENTS: Final = (
    "echoes",  # an old request comes again, whatever happened since
    "closed connections",
    "silent crashes",  # a member is gone without a word, and a new one comes in its place
    "quick restarts",  # the same, and it is back at once
    "stalls",  # a member stands still, for longer than its session perhaps, and goes on as if nothing had happened
    "leaves",
    "batch leaves",
    "changed metadata",
    "leader asks",  # a leader joins again without a change, which asks for a rebalance
    "coordinator crashes",  # all soft state is gone, and records that were not on disk; connections are reset
    "shard drops",  # the same without the connections: what travels still arrives
    "wall steps",
    "strangers",  # requests with member ids that were not given out
    "admin removals",  # an administrator removes a static member by its instance id
    "resets",  # an administrator moves offsets of a group, or tries to
    "deleted groups",  # an administrator deletes a group, or tries to
    "deleted offsets",
)
"""What befalls the system from time to time."""

COORDINATOR: Final = (
    "small groups",  # fewer members than clients
    "initial delay",
    "expiry",  # offsets are kept for seconds
)
"""How the coordinator is configured."""

MAX_SIZE: Final = 3
DELAY_MS: Final = 400
RETENTION_MS: Final = 2_500
EXPIRY_MS: Final = 700

SHELL: Final = (
    "late timers",
    "stale timers",  # a timer fires though its deadline was moved or taken away
    "slow disk",  # records wait for their flush, and all answers after them
)
"""How the shell around the core behaves."""

MEMBERS: Final = (
    "short polls",  # heartbeats are not pending
    "farewell commits",  # members commit when they hear of a rebalance, and then join
    "beats while joining",
    "subscriptions",  # what they say can be read, so that it is known which offsets are in use
    "static members",  # some have an instance id, which outlives their process
)
"""How members behave."""

SLICES: Final = "slices"
"""Decisions about more than one member are carried out a member at a time, and others have their turn in between."""

TRANSACTIONS: Final = (
    "transactions",  # members commit in transactions, whose markers come late, twice or in company
    "mixed commits",  # and now and then plainly beside one that is open
)
"""How members commit."""

BEHAVIOURS: Final = (*NETWORK, *EVENTS, *COORDINATOR, *SHELL, *MEMBERS, SLICES, *TRANSACTIONS)


@dataclass(frozen=True, slots=True)
class Plan:
    """One history: the seed of all its random streams, what may happen in it, and how much of it there is."""

    seed: int
    behaviours: tuple[str, ...]
    clients: int
    groups: int
    event_gap_ms: int
    """Mean time between two events, in ms."""

    fault_rate: float
    """How many requests the network disturbs, of all."""

    steps: int
    """After so many steps the faults stop and everything has to settle."""

    def without(self, behaviour: str) -> Plan:
        """The same history in a quieter world."""
        return replace(self, behaviours=tuple(name for name in self.behaviours if name != behaviour))


def config_of(plan: Plan) -> GroupConfig:
    """How the coordinator of a history is configured."""
    config = GroupConfig(min_session_timeout_ms=100)
    if "small groups" in plan.behaviours:
        config = replace(config, group_max_size=MAX_SIZE)
    if "initial delay" in plan.behaviours:
        config = replace(config, initial_rebalance_delay_ms=DELAY_MS)
    if "expiry" in plan.behaviours:
        config = replace(config, offsets_retention_ms=RETENTION_MS, offsets_retention_check_interval_ms=EXPIRY_MS)
    return config


def draw(seed: int, steps: int) -> Plan:
    """The plan of a seed. Each seed draws which behaviours exist at all (swarm testing): a fault that is rare among many
    others is common among a few."""
    random = Random(f"plan {seed}")
    share = random.choice((0.2, 0.4, 0.7))
    sliced = Random(f"slices {seed}").random() < share  # a stream of its own: other draws stay as they are
    of_others = (SLICES, *TRANSACTIONS)
    drawn = tuple(name for name in BEHAVIOURS if name not in of_others and random.random() < share)
    transacting = Random(f"transactions {seed}")
    drawn_too = tuple(name for name in TRANSACTIONS if transacting.random() < 0.3)
    return Plan(
        seed=seed,
        behaviours=(*drawn, *((SLICES,) if sliced else ()), *drawn_too),
        clients=random.randint(2, 8),
        groups=random.choice((1, 1, 2)),
        event_gap_ms=random.choice((400, 1500, 5000)),
        fault_rate=random.choice((0.01, 0.05, 0.2)),
        steps=steps,
    )
