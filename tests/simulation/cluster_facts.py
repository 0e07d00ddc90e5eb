"""What happened between the nodes of a cluster: who led when, what was written to the metadata, what replicas have."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any, Final, NamedTuple

from coordinator.metadata.authority import Compare, Delete, DeletePrefix, Delta, Operation, Put
from tests.simulation.record_facts import Partition

PREFIX: Final = "/cohort/sim/"
"""What the keys of a history's cluster begin with."""
_PARTITIONS: Final = "partitions/"
RENEWED: Final = "renewed"
"""A topic that is deleted and made again all the time: nothing is promised of its records, and no one notes them."""

Place = tuple[str, int]
"""Id of a topic, and the partition."""


class Registered(NamedTuple):
    """What the metadata said of a partition from a revision on."""

    leader: int
    leader_epoch: int
    replicas: tuple[int, ...]
    isr: tuple[int, ...]
    joined: tuple[int, ...]
    adding: tuple[int, ...]

    def joined_with(self, node: int) -> int:
        """The broker epoch with which a node joined those in sync; -1 of one that is not."""
        return self.joined[self.isr.index(node)] if node in self.isr else -1


class Asked(NamedTuple):
    """An offset that a coordinator told somebody who asked for it, -1 for none."""

    asked_s: float
    at_s: float
    group: str
    partition: tuple[str, int]
    offset: int


def registered(value: Any) -> Registered:
    """A partition's value, read apart from how nodes read it."""
    fields = json.loads(value)
    return Registered(
        fields["leader"],
        fields["leader_epoch"],
        tuple(fields["replicas"]),
        tuple(fields["isr"]),
        tuple(fields.get("joined", (0,) * len(fields["isr"]))),
        tuple(fields.get("adding", ())),
    )


@dataclass(slots=True)
class ClusterFacts:
    """Each list has ways in which an invariant was broken, in sentences."""

    led: dict[tuple[Place, int], str] = field(default_factory=dict)
    """Who has appended as the leader of an epoch."""
    two_leaders: list[str] = field(default_factory=list)
    unfenced: list[str] = field(default_factory=list)
    """Writes to the metadata of a partition that would have overwritten what another node had written meanwhile."""
    not_in_sync: list[str] = field(default_factory=list)
    """Leaders outside the in-sync replicas."""
    lost_disks: dict[int, int] = field(default_factory=dict)
    """Nodes that came back without what their disk had, and the revision of the metadata when they last did."""
    lost: dict[Partition, None] = field(default_factory=dict)
    """Partitions of which no replica in sync has kept its disk: none of them may lead, and so none ever does."""
    flipped: dict[Partition, str] = field(default_factory=dict)
    """Partitions with a flipped bit in one copy, and the node that has it."""
    leading_on: list[str] = field(default_factory=list)
    """Leaders that could not serve their log, and led on although enough others were in sync."""
    waiting: dict[Partition, list[tuple[object, float]]] = field(default_factory=dict)
    """Of each partition that has too few replicas in sync: what waits for them and is to be told so, and since when."""
    held_up: dict[str, None] = field(default_factory=dict)
    """Producers that were not told for too long that too few replicas were in sync."""
    orphaned: list[str] = field(default_factory=list)
    """Reassignments of partitions that are gone, which were left at the end."""
    forgotten: list[str] = field(default_factory=list)
    """Producers that one replica remembers otherwise than the leader, at the end."""
    empty_leaders: list[str] = field(default_factory=list)
    """Leaders that were elected for what they had on a disk that is lost."""
    differing: dict[str, None] = field(default_factory=dict)
    """Batches that two replicas have at one offset and of one epoch, and that are not the same."""
    lacking: dict[str, None] = field(default_factory=dict)
    """Replicas in sync that lack what is below the high watermark."""
    falling: dict[str, None] = field(default_factory=dict)
    """High watermarks that are above the end of their log, or below what was shown before."""
    stale: list[str] = field(default_factory=list)
    """Ends of partitions that clients were told of, below what was acknowledged before they asked."""
    asked: list[Asked] = field(default_factory=list)
    batches: dict[tuple[Place, int, int], tuple[bytes, tuple[int, int] | None, str]] = field(default_factory=dict)
    """Of each offset and epoch: the batch that begins there, which one is before it, and the replica that had it first."""
    records: dict[tuple[Place, int, int], tuple[tuple[object, ...], str]] = field(default_factory=dict)
    """The same of records, for logs whose batches are written anew."""
    epochs: dict[tuple[Place, int], tuple[int, int, str]] = field(default_factory=dict)
    """Of each epoch of a log: where it begins, behind which, and the replica that had it first."""
    shown: dict[Place, tuple[int, int]] = field(default_factory=dict)
    """The highest of the high watermarks of a partition, and its epoch."""

    def note_transaction(
        self, host: str, compare: Sequence[Compare], operations: Sequence[Operation], delta: Delta
    ) -> None:
        """A transaction on the metadata took effect."""
        fences = {condition.key.removeprefix(PREFIX) for condition in compare}
        for operation in operations:
            self._look_at_fence(host, fences, operation)
        for change in delta.changes:
            key = change.key.removeprefix(PREFIX)
            if key.startswith(_PARTITIONS) and change.after is not None:
                before = None if change.before is None else registered(change.before.value)
                self._look_at_partition(host, key, before, registered(change.after.value))

    def is_on_others(self, partition: Partition) -> bool:
        """Whether one copy was harmed, and the others have all that was acknowledged."""
        return partition in self.flipped and partition not in self.lost

    def is_harmed(self, partition: Partition, node: str) -> bool:
        """Whether a node's copy is not what was written, or what was acknowledged is nowhere."""
        return partition in self.lost or self.flipped.get(partition) == node

    def has_no_clean_replica(self, state: Registered) -> bool:
        """Whether each replica in sync has lost its disk since it joined: what was acknowledged may be nowhere."""
        return all(
            joined <= self.lost_disks.get(node, -1) for node, joined in zip(state.isr, state.joined, strict=True)
        )

    def _look_at_fence(self, host: str, fences: set[str], operation: Operation) -> None:
        name = operation.prefix if isinstance(operation, DeletePrefix) else operation.key
        key = name.removeprefix(PREFIX)
        if not key.startswith(_PARTITIONS) or not isinstance(operation, Put | Delete | DeletePrefix):
            return
        topic_id = key.split("/")[1]
        own = {key, "controller", f"creating/{topic_id}"}
        topics = {fence for fence in fences if fence.startswith("topics/")}
        if not fences & own and not topics:
            self.unfenced.append(f"{host} wrote {key} on the condition of {sorted(fences) or 'nothing'}")

    def _look_at_partition(self, host: str, key: str, before: Registered | None, after: Registered) -> None:
        if before is not None:
            again = after.leader == before.leader or after.leader == -1
            if after.leader_epoch < before.leader_epoch or (after.leader_epoch == before.leader_epoch and not again):
                self.two_leaders.append(f"{host} changed {key} from {before} to {after}")
        if after.leader != -1 and after.leader not in after.isr:
            self.not_in_sync.append(f"{host} made {after.leader} the leader of {key}, in sync are {after.isr}")
        if before is not None and after.leader_epoch != before.leader_epoch and after.leader in before.isr:
            lost, node = self.lost_disks.get(after.leader, -1), after.leader
            is_single = before.replicas == (node,) and not before.adding  # what a single replica has is all there is
            if not is_single and before.joined_with(node) <= lost < after.joined_with(node):
                self.empty_leaders.append(f"{host} made {node} the leader of {key}, which has lost its disk at {lost}")
        joined = set(after.isr).difference(() if before is None else before.isr)
        if not after.isr or not joined <= {
            *after.replicas,
            *after.adding,
        }:  # who is moved away leaves in a step of its own
            self.not_in_sync.append(f"{host} wrote {key}: in sync are {after.isr} of {after.replicas}")

    def note_append(self, place: Place, name: str, epoch: int, node: str) -> None:
        """A node has appended to a partition as its leader."""
        first = self.led.setdefault((place, epoch), node)
        if first != node:
            self.two_leaders.append(f"{first} and {node} both appended to {name} in epoch {epoch}")

    def note_batch(
        self, place: Place, name: str, node: str, last: tuple[int, int] | None, at: tuple[int, int], content: bytes
    ) -> None:
        """The fingerprint of a batch that a replica has, its offset and epoch, and those of the batch before it."""
        offset, epoch = at
        first, before, there = self.batches.setdefault((place, offset, epoch), (content, last, node))
        if first != content:
            self.differing[f"{there} and {node} have different batches at {offset} of {name}, epoch {epoch}"] = None
        elif last is not None and before is not None and last != before:
            self.differing[
                f"{there} and {node} have one batch at {offset} of {name}, epoch {epoch}, behind {before} and {last}"
            ] = None
        elif before is None and last is not None:
            self.batches[place, offset, epoch] = first, last, there

    def note_record(self, place: Place, name: str, node: str, at: tuple[int, int], content: tuple[object, ...]) -> None:
        """A record that a replica has, and its offset and epoch."""
        first, there = self.records.setdefault((place, *at), (content, node))
        if first != content:
            self.differing[f"{there} and {node} have {first} and {content} at {at[0]} of {name}, epoch {at[1]}"] = None

    def note_epochs(self, place: Place, name: str, node: str, entries: Sequence[tuple[int, int]], end: int) -> None:
        """The epochs of a replica's log, which ends at ``end``: one begins at one offset, behind one epoch.

        With ``note_record`` this is the same as one record at an offset and epoch, and the same before it.
        """
        for (before, _), (epoch, start) in pairwise(entries):
            if start < end:
                *first, there = self.epochs.setdefault((place, epoch), (start, before, node))
                if first != [start, before]:
                    self.differing[
                        f"{there} and {node} have epoch {epoch} of {name} from {first[0]} and {start} on, behind epochs "
                        f"{first[1]} and {before}"
                    ] = None
