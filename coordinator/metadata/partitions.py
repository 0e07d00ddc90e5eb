"""What the metadata says of a partition, and which partitions each node has and leads; pure."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from coordinator.replication.partition import Incarnation, PartitionRegistration

NO_LEADER = -1
MAJORITY = -1
"""As ``min.insync.replicas``: a majority of the replicas from three on, else one."""


def min_in_sync(min_insync: int, replicas: int) -> int:
    """How many of so many replicas have to be in sync; one never needs more than there are."""
    if min_insync == MAJORITY:
        return replicas // 2 + 1 if replicas >= 3 else 1
    return min(min_insync, replicas)


@dataclass(frozen=True, slots=True)
class PartitionState:
    """Who leads a partition since which epoch, who has copies, who is in sync.

    ``joined`` has the broker epochs with which the members of ``isr`` joined, in its order; () stands for 0 of each.
    ``adding`` are replicas of a reassignment that are not in sync yet. ``partition_epoch`` is the revision of the key.
    """

    leader: int
    leader_epoch: int
    replicas: tuple[int, ...]
    isr: tuple[int, ...]
    leader_broker_epoch: int = 0
    joined: tuple[int, ...] = ()
    min_isr: int = 1
    adding: tuple[int, ...] = ()
    partition_epoch: int = 0

    @property
    def registration(self) -> PartitionRegistration:
        """The same for those who decide about replicas."""
        leader = None if self.leader == NO_LEADER else Incarnation(self.leader, self.leader_broker_epoch)
        joined = self.joined or (0,) * len(self.isr)
        isr = dict(zip(self.isr, joined, strict=True))
        return PartitionRegistration(self.replicas, leader, self.leader_epoch, isr, self.min_isr, self.adding)

    def has(self, node: int) -> bool:
        """Whether a node has a replica or is to have one."""
        return node in self.replicas or node in self.adding

    def lacks_replicas(self, min_insync: int) -> bool:
        """Whether too few are in sync for a write that asks for all; one never needs more than there are."""
        return len(self.isr) < min_in_sync(min_insync, len(self.replicas))

    def routes_as(self, other: PartitionState) -> bool:
        """Whether clients find it where they find ``other``: all but who is in sync."""
        return (
            self.leader == other.leader and self.leader_epoch == other.leader_epoch and self.replicas == other.replicas
        )


def changed(
    states: tuple[PartitionState, ...], changes: Mapping[int, PartitionState | None]
) -> tuple[PartitionState, ...]:
    """The partitions of a topic with those that changed, came or went (None)."""
    if all(index < len(states) and state is not None for index, state in changes.items()):
        fresh = list(states)  # a copy, without a look at the others
        for index, state in changes.items():
            if state is not None:
                fresh[index] = state
        return tuple(fresh)
    known = {**dict(enumerate(states)), **changes}
    return tuple(state for _, state in sorted(known.items()) if state is not None)


class PartitionsByNode:
    """Which partitions, by topic id and number, each node has a replica of or is to have one of, and which it leads."""

    def __init__(self) -> None:
        self._replicas: dict[int, dict[tuple[str, int], None]] = {}
        self._led: dict[int, dict[tuple[str, int], None]] = {}

    def note(self, partition: tuple[str, int], before: PartitionState | None, after: PartitionState | None) -> None:
        """A partition became ``after``, None when it went."""
        had = () if before is None else (*before.replicas, *before.adding)
        has = () if after is None else (*after.replicas, *after.adding)
        if had != has:
            _move(self._replicas, partition, had, has)
        led = () if before is None or before.leader == NO_LEADER else (before.leader,)
        leads = () if after is None or after.leader == NO_LEADER else (after.leader,)
        if led != leads:
            _move(self._led, partition, led, leads)

    def of(self, node: int) -> Iterator[tuple[str, int]]:
        """What the node has a replica of or is to have one of, as it is now."""
        return iter(tuple(self._replicas.get(node, ())))

    def led_by(self, node: int) -> Iterator[tuple[str, int]]:
        """What the node leads, as it is now."""
        return iter(tuple(self._led.get(node, ())))


def _move(
    known: dict[int, dict[tuple[str, int], None]],
    partition: tuple[str, int],
    before: tuple[int, ...],
    after: tuple[int, ...],
) -> None:
    for node in before:
        if node not in after:
            del known[node][partition]
    for node in after:
        if node not in before:
            known.setdefault(node, {})[partition] = None
