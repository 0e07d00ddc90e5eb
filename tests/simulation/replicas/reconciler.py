"""A node follows the metadata: its mirror moves on delta by delta, and its replica becomes what the registration says."""

from __future__ import annotations

from coordinator.metadata.authority import CompactedError
from coordinator.nodes import cleanliness
from coordinator.replication.leader import Leader
from coordinator.replication.partition import PartitionRegistration
from tests.simulation.replicas.cluster import Cluster
from tests.simulation.replicas.node import Disk, Node


class Reconciler:
    """Moves mirrors on and reconciles replicas with them."""

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster

    def observe(self) -> None:
        """Some node's mirror moves on."""
        revision = self._cluster.authority.revision
        node = self._cluster.one_of([node for node in self._cluster.serving() if node.mirror.revision < revision])
        if node is None:
            return
        turns = 1 if "stale mirrors" in self._cluster.on else 3
        while turns and self.take_delta(node):
            self.reconcile(node)
            turns -= 1

    def catch_up(self, node: Node) -> None:
        """A node sees all of the metadata."""
        while node.mirror.revision < self._cluster.authority.revision and self.take_delta(node):
            self.reconcile(node)

    def take_delta(self, node: Node) -> bool:
        """Moves a node's mirror by one delta; False when it has seen everything. The replica is not told yet."""
        try:
            delta = next(self._cluster.authority.since(node.mirror.revision), None)
        except CompactedError:
            return self.list_all(node)
        if delta is None or not node.mirror.apply(delta):
            return False
        node.take(delta.changes)
        return True

    def list_all(self, node: Node) -> bool:
        """Replaces a node's mirror by all keys, as where deltas are missing."""
        delta = node.mirror.replace(self._cluster.authority.range(""), self._cluster.authority.revision)
        if delta is None:
            return False
        node.take(delta.changes)
        return True

    def reconcile(self, node: Node) -> None:
        """What a node does when the metadata says something else: stop, begin the epoch, serve."""
        part, disk = node.part, node.disk
        if part is None or node.registration is None:
            if node.replica is not None:
                node.stop_replica()
            return
        known = node.registration
        if not known.has(node.id):
            if node.replica is not None or disk.topic_id == node.topic_id:
                self._remove_log(node)
            return
        if disk.topic_id != node.topic_id:
            self._open_log(node)
        replica = node.replica
        if known.leader is None:
            if replica is not None:
                epoch = node.leader_epoch
                node.stop_replica()
                node.leader_epoch = epoch
            return
        if known.leader_epoch > node.leader_epoch:
            node.stop_replica()
            node.leader_epoch = known.leader_epoch
            self._take_role(node, known)
        elif isinstance(replica, Leader) and known.leader_epoch == replica.leader_epoch:
            before = replica.high_watermark
            replica.observe(known, part.mod_revision)
            self.advanced(node, replica, before)

    def _take_role(self, node: Node, known: PartitionRegistration) -> None:
        assert node.part is not None
        assert known.leader is not None
        if known.leads(node.me):
            node.log.begin_epoch(known.leader_epoch)
            replica = node.replica = node.lead(node.part, self._cluster.now_ms)
            self._cluster.say(
                f"node {node.id} leads epoch {known.leader_epoch} from {replica.start_offset}, in sync {dict(known.isr)}"
            )
            if node.topic_id == self._cluster.topic_id:
                self._cluster.facts.epoch_began(node.me, replica, node.log)
            self.advanced(node, replica, 0)
        elif known.leader.node != node.id:
            node.replica = node.follow(known.leader_epoch)
            self._cluster.say(f"node {node.id} follows {known.leader} in epoch {known.leader_epoch}")

    def _remove_log(self, node: Node) -> None:
        self._cluster.say(f"node {node.id} removes its log")
        node.stop_replica()
        node.disk = Disk(record=node.disk.record)
        self._cluster.check_all()

    def _open_log(self, node: Node) -> None:
        """A replica that is new here, or whose directory is of a namesake that was deleted."""
        node.stop_replica()
        assert node.topic_id is not None
        partition = (str(node.topic_id), 0)
        disk = node.disk
        found = None if disk.topic_id is None else str(disk.topic_id)
        opening = cleanliness.opening(partition, found, disk.inventory)
        self._cluster.say(f"node {node.id}: the log of topic {node.topic_id} is {opening}")
        if opening != "opened":
            node.disk = Disk(record=disk.record, inventory=disk.inventory | {partition})
        node.disk.topic_id = node.topic_id
        node.disk.inventory.add(partition)
        if node.topic_id == self._cluster.topic_id:
            self._cluster.facts.appended(node.log, 0)

    def advanced(self, node: Node, replica: Leader, before: int) -> None:
        """Notes what a leader's new high watermark acknowledges and which deletions are done."""
        if replica.high_watermark > before and node.topic_id == self._cluster.topic_id:
            self._cluster.say(
                f"node {node.id}: high watermark {replica.high_watermark} in epoch {replica.leader_epoch}"
            )
            self._cluster.facts.advanced(replica, node.log, before)
            self._cluster.check_all(before)
        if node.deletions and replica.is_deleted(node.deletions[0]):
            offset = node.deletions.pop(0)
            self._cluster.say(f"node {node.id}: records before {offset} are deleted")
            if node.topic_id == self._cluster.topic_id:
                self._cluster.facts.deleted(offset)
