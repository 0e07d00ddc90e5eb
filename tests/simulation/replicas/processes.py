"""The process of a node: it starts, registers, keeps its lease or registers anew, and stops."""

from __future__ import annotations

from typing import Final

from coordinator.metadata.authority import Put
from coordinator.nodes import cleanliness
from coordinator.nodes.cleanliness import Found, NodeRecord, judge
from coordinator.replication.leader import Leader
from coordinator.replication.partition import Incarnation, PartitionRegistration
from tests.simulation.replicas.cluster import Cluster
from tests.simulation.replicas.node import PART, TOPIC, Node, live_key, start_key
from tests.simulation.replicas.reconciler import Reconciler

TTL_MS: Final = 2_000


class Processes:
    """Starts, leases and controlled stops."""

    def __init__(self, cluster: Cluster, reconciler: Reconciler) -> None:
        self._cluster = cluster
        self._reconciler = reconciler
        self._starts = 0

    def begin(self, node: Node) -> None:
        """A process starts, registers, and lists the metadata."""
        self._starts += 1
        start = f"start {self._starts}"
        node.forget()
        disk = node.disk
        disk.log.refuse_write()
        disk.log.write()
        disk.log.flush()
        node.up, node.leaves = True, False
        self._register(node, start, self._found(node))

    def _found(self, node: Node) -> Found:
        """What the start finds on disk."""
        registered = self._cluster.authority.get(start_key(node.id))
        disk = node.disk
        lost = node.doubt and self._recovery_sees(node)
        topic = self._cluster.authority.get(TOPIC)
        if topic is not None:
            known: PartitionRegistration = self._cluster.authority.get(f"{PART}{topic.value}").value  # type: ignore[union-attr]
            found = None if disk.topic_id is None else str(disk.topic_id)
            opening = cleanliness.opening((str(topic.value), 0), found, disk.inventory)
            lost = lost or (known.has(node.id) and opening == "lost")
        return Found(
            "" if registered is None else registered.value, str(node.boot), self._cluster.flush_at_acknowledgement, lost
        )

    def _recovery_sees(self, node: Node) -> bool:
        """A log that ends before its checkpoint; without a directory only the inventory tells."""
        return node.damaged and node.disk.topic_id is not None and self._cluster.flush_at_acknowledgement

    def _register(self, node: Node, start: str, found: Found) -> None:
        record = node.disk.record
        if record is not None:
            record = record._replace(starts=(record.starts[-1], start))
        verdict = judge(record, found)
        old = self._cluster.authority.get(live_key(node.id))
        if old is not None:
            self._cluster.authority.revoke(old.lease)
        node.lease = self._cluster.authority.grant(TTL_MS, self._cluster.now_ms)
        value = (verdict.clean_since, True)
        delta = self._cluster.authority.transaction(
            [], [Put(live_key(node.id), value, node.lease), Put(start_key(node.id), start)]
        )
        assert delta is not None
        node.me = Incarnation(node.id, delta.revision)
        clean_since = verdict.clean_since or delta.revision
        node.disk.record = NodeRecord((start,), clean_since, str(node.boot), False)
        node.doubt = node.damaged = False
        self._cluster.say(f"node {node.id} is registered as {node.me}, clean since {clean_since} {verdict.reason}")
        self._reconciler.list_all(node)
        self._reconciler.reconcile(node)
        self._check_all_if_there()

    def _check_all_if_there(self) -> None:
        if self._cluster.topic_id:
            self._cluster.check_all()

    def renew(self) -> None:
        """Some node renews its lease; others end in time."""
        node = self._cluster.any_node()
        if node is not None:
            self.renew_lease(node)
        self.expire()

    def expire(self) -> None:
        """Leases end whose time is over."""
        for delta in self._cluster.authority.expire(self._cluster.now_ms):
            self._cluster.say(f"leases end: {[change.key for change in delta.changes]}")

    def renew_lease(self, node: Node) -> None:
        """A node renews its lease, or registers anew without one."""
        if not self._cluster.authority.renew(node.lease, self._cluster.now_ms):
            self._cluster.say(f"node {node.id} has lost its lease and leads nothing any more")
            self._starts += 1
            node.stop_replica()
            record = node.disk.record
            assert record is not None
            found = Found(record.starts[-1], record.boot_id, self._cluster.flush_at_acknowledgement, False)
            self._register(node, f"start {self._starts}", found)

    def start(self) -> None:
        """Some node goes on, starts, or ends its controlled stop."""
        node = self._cluster.one_of(
            [node for node in self._cluster.all_nodes if node.paused or node.leaves or not node.up]
        )
        if node is None:
            return
        if node.paused:
            node.paused = False
            self._cluster.say(f"node {node.id} goes on")
        elif not node.up:
            self.begin(node)
        elif node.leaves and not isinstance(node.replica, Leader):
            self.stop(node)

    def stop(self, node: Node) -> None:
        """A controlled stop: the last flush, hints, the clean flag, and the lease is given back."""
        node.stop_replica()
        node.log.write()
        node.log.flush()
        assert node.disk.record is not None
        node.disk.record = node.disk.record._replace(stopped_cleanly=True)
        self._cluster.authority.revoke(node.lease)
        node.up, node.leaves = False, False
        self._cluster.say(f"[drains] node {node.id} has stopped")
