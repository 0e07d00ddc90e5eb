"""What the metadata says about a partition and about the nodes that live: the ground on which replicas decide."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import NamedTuple


class Incarnation(NamedTuple):
    """A node between two registrations. Each has a broker epoch of its own, greater than all before."""

    node: int
    broker_epoch: int


class LiveNode(NamedTuple):
    """What a node's live key says. ``broker_epoch`` is the revision that created the key."""

    broker_epoch: int
    clean_since: int
    """Since this broker epoch the node has lost nothing that it acknowledged; see ``nodes.cleanliness``."""
    accepting: bool = True
    """False while the node hands over what it has, before it stops."""


@dataclass(frozen=True, slots=True)
class PartitionRegistration:
    """The value of a partition's key. Its partition epoch is the revision that wrote it, and is not part of it.

    ``isr`` has the broker epoch with which each member joined. ``leader_epoch`` rises with each leader that is elected, also
    when it is the same node again. ``adding`` are replicas of a reassignment that are not in sync yet.
    """

    replicas: tuple[int, ...]
    leader: Incarnation | None
    leader_epoch: int
    isr: Mapping[int, int]
    min_isr: int
    adding: tuple[int, ...] = ()

    def leads(self, me: Incarnation) -> bool:
        """Whether this incarnation leads. The one before it may have: a node that starts again waits for its election."""
        return self.leader == me

    def has(self, node: int) -> bool:
        """Whether a node has a replica or is to have one."""
        return node in self.replicas or node in self.adding


@dataclass(frozen=True, slots=True)
class ReplicationConfig:
    """Times of replication."""

    replica_lag_time_max_ms: int = 10_000
    delete_retention_ms: int = 86_400_000
