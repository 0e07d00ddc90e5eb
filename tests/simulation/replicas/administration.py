"""What administrators and the log's own housekeeping do: DeleteRecords, compaction, reassignments, topics made again."""

from __future__ import annotations

from collections.abc import Callable

from coordinator.metadata.authority import Put
from tests.simulation.replicas.cluster import Cluster
from tests.simulation.replicas.node import DELETE_RETENTION_MS, REASSIGN, live_key


class Administration:
    """Work on the topic beside appending."""

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster

    def events(self) -> list[Callable[[], None]]:
        """Those that are in the plan."""
        known: dict[str, Callable[[], None]] = {
            "reassignments": self._reassign,
            "new topics": self._new_topic,
        }
        return [event for name, event in known.items() if name in self._cluster.on]

    def delete_records(self) -> None:
        """Some leader is asked to delete records."""
        found = self._cluster.a_leader()
        if found is None:
            return
        node, replica = found
        offset = min(replica.high_watermark, node.log.start_offset + 1 + int(self._cluster.random() * 12))
        if offset > node.log.start_offset and not node.deletions and node.topic_id == self._cluster.topic_id:
            if any(batch.base_offset < offset < batch.next_offset for batch in node.log.batches):
                return
            self._cluster.facts.delete_requested = max(self._cluster.facts.delete_requested, offset)
            node.log.delete_before(offset)
            node.deletions.append(offset)
            self._cluster.say(f"[deletions] node {node.id}: before {offset}")

    def compact(self) -> None:
        """Some log is compacted."""
        node = self._cluster.one_of([node for node in self._cluster.serving() if node.replica is not None])
        if node is not None and node.replica is not None and node.topic_id == self._cluster.topic_id:
            below = min(node.replica.high_watermark, node.log.flushed_offset)
            node.log.compact(below, self._cluster.now_ms, DELETE_RETENTION_MS, joins=self._cluster.random() < 0.7)
            self._cluster.say(f"[compaction] node {node.id} below {node.log.clean_until}: {sorted(node.log.records)}")
            self._cluster.check_all()

    def _reassign(self) -> None:
        numbers = list(self._cluster.nodes)
        if len(numbers) <= self._cluster.plan.replicas and self._cluster.random() < 0.7:
            return
        first = int(self._cluster.random() * len(numbers))
        target = tuple((numbers + numbers)[first : first + self._cluster.plan.replicas])
        self._cluster.authority.transaction([], [Put(REASSIGN, target)])
        self._cluster.say(f"[reassignments] to {target}")

    def _new_topic(self) -> None:
        if self._cluster.random() < 0.3:
            registered = [
                node
                for node in self._cluster.all_nodes
                if self._cluster.authority.get(live_key(node.id)) is not None and node.up
            ]
            if len(registered) == len(self._cluster.all_nodes):
                self._cluster.make_topic()
