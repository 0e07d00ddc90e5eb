"""What one seed means: which workloads and faults exist, and how large everything is.

Drawn once a seed (swarm testing: a history in which only one thing goes wrong finds other faults than one in which all
do). A plan can be made smaller without drawing anew, which is how a failing seed shrinks.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from random import Random
from typing import Final, Literal

ASSIGNORS: Final = ("range", "roundrobin", "sticky", "cooperative-sticky", "cooperative-sticky", "mixed", "upgrade")
"""What members offer: one strategy all of them, "mixed" lists that have one in common, or "upgrade": range and
cooperative at first, and cooperative alone once a process is started again."""


@dataclass(frozen=True, slots=True)
class Plan:
    """One history. Times are virtual."""

    seed: int
    workloads: tuple[str, ...]
    faults: tuple[str, ...]
    fault_s: float = 15.0
    """How long faults come."""
    fault_pause_s: float = 2.0
    """The mean time between two."""
    max_faults: int = 1_000
    consumers: int = 2
    producers: int = 1
    records: int = 60
    """Values of each producer."""
    partitions: int = 3
    fifo: bool = False
    latency_ms: float = 0.5
    split_chance: float = 0.1
    segment_bytes: int = 2048
    compaction_ms: int = 3_000
    max_in_flight: int = 256
    auto_commit: bool = True
    assignor: str = "range"
    session_ms: int = 3_000
    max_steps: int = 1_000_000
    static: bool = False
    """Whether members that stay have instance ids."""
    group_max_size: int = 50_000
    initial_delay_ms: int = 0
    retention_ms: int = 604_800_000
    expiry_ms: int = 600_000
    """The pause between two looks for offsets that have expired."""
    checkpoint_ms: int = 500
    """How old the checkpoint of a log may get while it grows."""
    members_per_slice: int = 2_000
    """Members that one slice of a group's decision deals with."""
    nodes: int = 1
    """How many daemons there are: one alone, or a cluster."""
    leader_rebalance: Literal["no", "yes"] = "yes"


DRAWN_APART: Final = ("kafka_transacting", "kafka_transforming")
"""Workloads that were added later, each drawn from a stream of its own: seeds that do not draw them mean what they meant."""
_CHANCE_APART: Final = 0.08


def draw(seed: int, workloads: Sequence[str], faults: Sequence[str]) -> Plan:
    """The plan of a seed, out of the workloads and faults there are."""
    apart = [name for name in workloads if name in DRAWN_APART]
    early = [name for name in workloads if name not in DRAWN_APART]
    plan = _draw(seed, early or workloads, faults)
    drawn = [name for name in apart if early and Random(f"{seed}/plan/{name}").random() < _CHANCE_APART]
    return replace(plan, workloads=(*plan.workloads, *drawn))


def _draw(seed: int, workloads: Sequence[str], faults: Sequence[str]) -> Plan:
    random = Random(f"{seed}/plan")

    def some(names: Sequence[str], least: int, chances: tuple[float, ...]) -> tuple[str, ...]:
        chance = random.choice(chances)
        chosen = [name for name in names if random.random() < chance]
        while len(chosen) < least:
            name = random.choice(names)
            if name not in chosen:
                chosen.append(name)
        return tuple(name for name in names if name in chosen)

    return Plan(
        seed=seed,
        workloads=some(workloads, 1, (0.1, 0.2, 0.4)),
        faults=some(faults, 1, (0.2, 0.4, 0.7)),
        fault_s=random.choice((6.0, 10.0, 15.0)),
        fault_pause_s=random.choice((0.5, 1.0, 2.0, 4.0)),
        consumers=random.choice((1, 2, 2, 3)),
        producers=random.choice((1, 1, 2)),
        records=random.choice((20, 40, 80)),
        partitions=random.choice((1, 2, 3)),
        fifo=random.random() < 0.3,
        latency_ms=random.choice((0.2, 0.5, 5.0)),
        split_chance=random.choice((0.0, 0.1, 0.5)),
        segment_bytes=random.choice((1024, 2048, 16384)),
        compaction_ms=random.choice((500, 3_000)),
        max_in_flight=random.choice((4, 256)),
        auto_commit=random.random() < 0.5,
        assignor=random.choice(ASSIGNORS),
        session_ms=random.choice((1_500, 3_000)),
        static=random.random() < 0.4,
        group_max_size=random.choice((50_000, 50_000, 50_000, 4)),
        initial_delay_ms=random.choice((0, 0, 0, 300)),
        retention_ms=random.choice((604_800_000, 604_800_000, 3_000)),
        expiry_ms=700,
        checkpoint_ms=random.choice((500, 60_000)),
        members_per_slice=random.choice((2_000, 1)),
    )


def draw_cluster(seed: int, workloads: Sequence[str], faults: Sequence[str], nodes: int = 3) -> Plan:
    """The plan of a seed for several nodes. Three of them look after some 320 logs, so they look less often."""
    plan = draw(seed, workloads, faults)
    return replace(
        plan,
        nodes=nodes,
        retention_ms=604_800_000,
        group_max_size=50_000,
        segment_bytes=2 * plan.segment_bytes,
        compaction_ms=max(plan.compaction_ms, 1_500),
        checkpoint_ms=max(plan.checkpoint_ms, 2_000),
    )


def has_kafka(plan: Plan) -> bool:
    """Whether Kafka's clients take part. Without them nobody listens for them: older plans mean what they meant."""
    return any(name.startswith("kafka_") for name in plan.workloads)


def to_json(plan: Plan) -> str:
    """A plan as one line of JSON, which means the same when workloads or faults are added later."""
    return json.dumps(asdict(plan))


def from_json(text: str) -> Plan:
    """The plan of ``to_json``."""
    fields = json.loads(text)
    return Plan(**{**fields, "workloads": tuple(fields["workloads"]), "faults": tuple(fields["faults"])})
