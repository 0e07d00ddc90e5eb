"""What an admin learns about the cluster, its topics, groups and transactions."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final, NamedTuple

from protocol.subscription import CONSUMER_PROTOCOL_TYPE, TopicPartition

GROUP_STATES: Final = ("Empty", "PreparingRebalance", "CompletingRebalance", "Stable", "Dead")
"""The states of a group: Kafka's names."""

TRANSACTION_STATES: Final = ("Empty", "Ongoing", "PrepareCommit", "PrepareAbort", "CompleteCommit", "CompleteAbort")
"""The states of a transactional id: Kafka's names. With a Prepare state the decision is on disk, and some end markers are
still to be written."""


@dataclass(frozen=True, slots=True)
class NodeDescription:
    """One node: its id, where it listens, and where it stands.

    ``alive`` is False for one that is registered and not there: nothing is known of its address then. ``draining`` says that
    it hands over what it leads, as it is about to stop. ``room`` is how many replicas of topics it may still be given (its
    ``max_partitions``), None where that is not known.
    """

    node_id: int
    host: str
    port: int
    rack: str | None = None
    alive: bool = True
    draining: bool = False
    room: int | None = None


@dataclass(frozen=True, slots=True)
class ClusterDescription:
    """The cluster: its id, its nodes by id, and which of them is the controller (-1 while there is none).

    ``nodes`` are those that live, ``absent_nodes`` those that are registered and do not. ``metadata_store`` says where the
    metadata is kept, for people.
    """

    cluster_id: str
    controller_id: int
    nodes: tuple[NodeDescription, ...]
    absent_nodes: tuple[NodeDescription, ...] = ()
    metadata_store: str = ""


@dataclass(frozen=True, slots=True)
class ReassignmentDescription:
    """A partition whose replicas move: where they are at the moment, and which of these come and go."""

    replicas: tuple[int, ...]
    adding: tuple[int, ...]
    removing: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class ReplicaDescription:
    """One copy of a partition: up to which offset it has records (-1: unknown), and how many its leader has more."""

    node_id: int
    end: int
    lag: int
    size: int
    fault: str


@dataclass(frozen=True, slots=True)
class PartitionDescription:
    """One partition: its leader (-1 while there is none) and since which epoch, its replicas and those in sync."""

    partition: int
    leader: int
    leader_epoch: int
    replicas: tuple[int, ...]
    in_sync_replicas: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class TopicDescription:
    """One topic and its partitions in order. ``internal`` topics are the daemon's own.

    ``config`` has every setting as it holds, as text under Kafka's names; ``own_config`` names those that are the topic's
    own and not the daemon's default.
    """

    name: str
    topic_id: str
    internal: bool
    partitions: tuple[PartitionDescription, ...]
    config: Mapping[str, str] = field(default_factory=dict)
    own_config: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class LogDescription:
    """What the log of one partition holds.

    ``start`` is the first offset, ``end`` the one after the last acknowledged record, ``size`` in bytes. ``dirty_percent``
    is the share of closed segments that compaction has not seen. ``fault`` tells why the partition is not served (all
    numbers are -1 then) or why its last retention or compaction failed; empty when all is well.
    """

    start: int
    end: int
    size: int
    segments: int
    dirty_percent: int
    fault: str


@dataclass(frozen=True, slots=True)
class GroupListing:
    """One group in a listing. ``state`` is one of ``GROUP_STATES``; ``protocol_type`` is "" before the first member."""

    group_id: str
    protocol_type: str
    state: str


@dataclass(frozen=True, slots=True)
class MemberDescription:
    """One member of a group.

    ``topics`` is what it subscribes to, sorted, and ``assignment`` what it owns, sorted, when the group's members
    are consumers; ``raw_assignment`` the bytes as the leader gave them, for all other groups. All are empty unless the group
    is Stable. ``software`` is the name and version of its client, as far as that told them (KIP-511).
    """

    member_id: str
    group_instance_id: str | None
    client_id: str
    host: str
    assignment: tuple[TopicPartition, ...]
    raw_assignment: bytes
    topics: tuple[str, ...] = ()
    software: str = ""


@dataclass(frozen=True, slots=True)
class GroupDescription:
    """One group. ``state`` is "Dead" for a group that does not exist. ``protocol`` is the assignor's name.

    ``coordinator`` is the ``HOST:PORT`` that coordinates it, ``last_rebalance_reason`` why the generation came about.
    ``waiting_for`` names the members that keep a rebalance from its end, ``pending_members`` is how many were given a member
    id and have not joined with it yet (KIP-394). ``empty_since_ms`` is since when an Empty group has no members, in
    milliseconds since 1970; ``None`` in other states, and when there never was a member. ``pending_offsets`` is how many
    offsets open transactions are to commit: they are not decided yet, and show nowhere else.
    """

    group_id: str
    state: str
    generation: int
    protocol_type: str
    protocol: str
    coordinator: str
    leader: str
    last_rebalance_reason: str
    members: tuple[MemberDescription, ...]
    waiting_for: tuple[str, ...] = ()
    pending_members: int = 0
    empty_since_ms: int | None = None
    pending_offsets: int = 0

    @property
    def idle_members(self) -> tuple[MemberDescription, ...]:
        """Members of a Stable group of consumers that own no partition."""
        if self.state != "Stable" or self.protocol_type != CONSUMER_PROTOCOL_TYPE:
            return ()
        return tuple(member for member in self.members if not member.assignment)


class PartitionLag(NamedTuple):
    """How far a group is behind in one partition.

    ``committed`` is the next offset to read, ``end`` the one after the last record, ``lag`` their distance. ``None`` stands
    for what there is not: no commit yet, a partition that is gone, no member that owns it.
    """

    topic: str
    partition: int
    committed: int | None
    end: int | None
    lag: int | None
    member_id: str | None


class RemovedMember(NamedTuple):
    """A member that was taken out of a group; a static one that was named by its instance id may have no ``member_id``."""

    member_id: str
    group_instance_id: str | None

    @property
    def text(self) -> str:
        """For people: ``member 'm-1'`` or ``static member 'worker-1'``."""
        if self.group_instance_id is not None:
            return f"static member {self.group_instance_id!r}"
        return f"member {self.member_id!r}"


@dataclass(frozen=True, slots=True)
class TransactionListing:
    """One transactional id in a listing, with the identity that its producer writes under.

    ``state`` is one of ``TRANSACTION_STATES``. ``started_ms`` is since when its transaction is open, in milliseconds since
    1970; ``None`` when none is.
    """

    transactional_id: str
    state: str
    producer_id: int
    producer_epoch: int
    started_ms: int | None


@dataclass(frozen=True, slots=True)
class TransactionMemberDescription:
    """A producer that writes in a transaction, since when, and where, sorted.

    ``name`` is "" for the producer of the transactional id itself; others have joined, such as the tasks of a Spark query.
    Partitions of ``__consumer_offsets`` stand for the groups in them whose offsets are committed with it.
    """

    producer_id: int
    name: str
    started_ms: int
    partitions: tuple[TopicPartition, ...]


@dataclass(frozen=True, slots=True)
class TransactionDescription:
    """One transactional id and its transaction.

    ``coordinator`` is the ``HOST:PORT`` that coordinates it. ``started_ms`` and ``timeout_ms`` say since when the
    transaction is open (``None``: none is) and how long it may be. ``committed_version`` is the highest version that was
    committed, and ``version`` the one that is open, of those that belong to ``scope``; ``None`` where there is none.
    ``previous_outcome`` says how the transaction before ended, "" when there was none. ``waits_for`` has a text for each
    partition whose end marker is not written yet, and why; after a hundred
    of them it says how many more there are.
    """

    transactional_id: str
    state: str
    coordinator: str
    producer_id: int
    producer_epoch: int
    timeout_ms: int
    started_ms: int | None
    members: tuple[TransactionMemberDescription, ...]
    committed_version: int | None
    version: int | None
    scope: str
    previous_outcome: str
    waits_for: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class ProducerDescription:
    """A producer that a partition remembers, with the last sequence and time of its records there.

    ``transaction_start`` is the first offset of its open transaction in the partition; ``None`` when none is open.
    """

    producer_id: int
    producer_epoch: int
    last_sequence: int
    last_timestamp_ms: int
    transaction_start: int | None


@dataclass(frozen=True, slots=True)
class PartitionProducers:
    """The producers of a partition, and how far it can be read.

    Readers with ``read_committed`` see the records below ``last_stable_offset``: it is ``high_watermark``, or the first
    offset of the oldest transaction that is open.
    """

    producers: tuple[ProducerDescription, ...]
    last_stable_offset: int
    high_watermark: int


class HangingTransaction(NamedTuple):
    """A transaction that is open in a partition, and no coordinator that can be asked knows of it.

    Readers with ``read_committed`` wait at ``start_offset`` until it is aborted.
    """

    topic: str
    partition: int
    producer_id: int
    producer_epoch: int
    start_offset: int
    last_timestamp_ms: int
