"""A node of the simulation: its disk, its picture of the metadata, and its replica, which is one of the real cores."""

from __future__ import annotations

from collections.abc import Iterable
from copy import deepcopy
from dataclasses import dataclass, field
from typing import Final

from coordinator.metadata.authority import Change, KeyValue
from coordinator.metadata.mirror import Mirror
from coordinator.nodes.cleanliness import NodeRecord
from coordinator.replication.follower import Follower
from coordinator.replication.leader import Leader
from coordinator.replication.partition import Incarnation, LiveNode, PartitionRegistration, ReplicationConfig
from coordinator.replication.sessions import ReplicaSessions
from tests.simulation.replicas.log import SimLog

DELETE_RETENTION_MS: Final = 2_500
TOPIC: Final = "topic"
PART: Final = "part/"
REASSIGN: Final = "reassign"
CONTROLLER: Final = "controller"


def live_key(node: int) -> str:
    """The key that lives with a node's lease."""
    return f"live/{node}"


def start_key(node: int) -> str:
    """The key that has the id of a node's last start."""
    return f"nodes/{node}"


def live_node(known: KeyValue) -> LiveNode:
    """What a live key says."""
    clean_since, accepting = known.value
    return LiveNode(known.create_revision, clean_since or known.create_revision, accepting)


@dataclass(slots=True)
class Disk:
    """What outlives a process."""

    log: SimLog = field(default_factory=SimLog)
    topic_id: int | None = None
    """What the log's directory says; None when there is no directory."""
    inventory: set[tuple[str, int]] = field(default_factory=set)
    record: NodeRecord | None = None
    high_watermark: int = 0
    caught_up_ms: int | None = None


class Node:
    """See the module text."""

    def __init__(self, number: int, lag_ms: int) -> None:
        self.id = number
        self._config = ReplicationConfig(lag_ms, DELETE_RETENTION_MS)
        self.disk = Disk()
        self.image: Disk | None = None
        self.boot = 0
        self.up = False
        self.paused = False
        self.leaves = False
        self.doubt = False
        """While it is down: something that it acknowledged may be gone."""
        self.damaged = False
        """While it is down: its log ends before what its checkpoint has."""
        self.harmed = 0
        """The broker epoch in which it lost something last."""
        self.lease = 0
        self.me = Incarnation(number, 0)
        self.session = 0
        self.mirror = Mirror()
        self.live: dict[int, LiveNode] = {}
        self.topic_id: int | None = None
        self.part: KeyValue | None = None
        self.replica: Leader | Follower | None = None
        self.leader_epoch = -1
        self.sessions: ReplicaSessions[int] = ReplicaSessions()
        self.deletions: list[int] = []

    @property
    def log(self) -> SimLog:
        """The log of the partition."""
        return self.disk.log

    @property
    def clean_since(self) -> int:
        """As it says itself."""
        return 0 if self.disk.record is None else self.disk.record.clean_since

    @property
    def registration(self) -> PartitionRegistration | None:
        """The partition, as far as the node knows."""
        return None if self.part is None else self.part.value

    def forget(self) -> None:
        """A process begins, or begins anew: it knows nothing and leads nothing."""
        self.stop_replica()
        self.mirror = Mirror()
        self.live = {}
        self.topic_id, self.part = None, None
        self.sessions = ReplicaSessions()

    def stop_replica(self, *, noting: bool = True) -> None:
        """Nothing is led or followed until the metadata says so; a process that is killed notes nothing."""
        replica, self.replica = self.replica, None
        self.leader_epoch = -1
        self.deletions.clear()
        self.sessions = ReplicaSessions()
        if replica is not None and noting:
            self.note_hints(replica)

    def note_hints(self, replica: Leader | Follower) -> None:
        """High watermark, and when the replica was caught up."""
        self.disk.high_watermark = replica.high_watermark
        if isinstance(replica, Follower):
            self.disk.caught_up_ms = replica.caught_up_ms

    def take(self, changes: Iterable[Change]) -> bool:
        """Follows what the metadata says; returns whether the partition or its topic is touched."""
        touched = False
        for key, _, after in changes:
            if key.startswith("live/"):
                node = int(key[5:])
                if after is None:
                    self.live.pop(node, None)
                else:
                    self.live[node] = live_node(after)
            elif key == TOPIC or key.startswith(PART):
                touched = True
        if touched:
            topic = self.mirror.get(TOPIC)
            self.topic_id = None if topic is None else topic.value
            self.part = self.mirror.get(f"{PART}{self.topic_id}")
        return touched

    def take_image(self) -> None:
        """Somebody keeps a copy of the directory."""
        self.image = deepcopy(self.disk)

    def follow(self, leader_epoch: int) -> Follower:
        """The follower of an epoch."""
        disk = self.disk
        return Follower(
            self.me,
            leader_epoch,
            disk.log,
            self._config,
            high_watermark=disk.high_watermark,
            caught_up_ms=disk.caught_up_ms,
        )

    def lead(self, part: KeyValue, now_ms: int) -> Leader:
        """The leader of an epoch, whose log has begun it."""
        registration: PartitionRegistration = part.value
        return Leader(
            self.me,
            registration,
            part.mod_revision,
            self.log,
            self._config,
            now_ms,
            high_watermark=self.disk.high_watermark,
        )
