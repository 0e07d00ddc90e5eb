"""Producers append to a leader's log; logs are written and synced some time later."""

from __future__ import annotations

from typing import Final

from coordinator.replication.leader import Leader
from tests.simulation.replicas.cluster import Cluster
from tests.simulation.replicas.node import Node
from tests.simulation.replicas.reconciler import Reconciler

KEYS: Final = 4
MAX_RECORDS: Final = 24
"""Of a log; when it has more none are appended until some are deleted or the topic is new."""


class Appends:
    """What is appended, written and synced."""

    def __init__(self, cluster: Cluster, reconciler: Reconciler) -> None:
        self._cluster = cluster
        self._reconciler = reconciler
        self._value = 0

    def append(self) -> None:
        """A producer appends one or two records to a log that is led."""
        found = self._cluster.a_leader()
        if found is None:
            return
        node, replica = found
        log = node.log
        if len(log.records) >= MAX_RECORDS or not replica.has_enough_in_sync(node.live, self._cluster.now_ms):
            return
        before = log.end_offset
        records: list[tuple[int, int | None]] = []
        for _ in range(1 + (self._cluster.random() < 0.3)):
            self._value += 1
            records.append((int(self._cluster.random() * KEYS), None if self._cluster.random() < 0.25 else self._value))
        log.append(records)
        replica.appended(before, self._cluster.now_ms)
        self._cluster.say(f"node {node.id} appends {records} at {before} in epoch {replica.leader_epoch}")

    def write(self) -> None:
        """Some node's log is written."""
        node = self._cluster.one_of(
            [node for node in self._cluster.serving() if node.log.written_offset < node.log.end_offset]
        )
        if node is not None:
            self.write_log(node)
            if not self._cluster.flush_at_acknowledgement:
                self.flush_log(node)

    def write_log(self, node: Node) -> None:
        """The machine has all of a node's log."""
        log, before = node.log, node.log.written_offset
        log.write()
        if log.written_offset > before and node.topic_id == self._cluster.topic_id and node.replica is not None:
            self._cluster.facts.appended(log, before)

    def flush(self) -> None:
        """Some node's log is synced."""
        node = self._cluster.one_of(
            [node for node in self._cluster.serving() if node.log.flushed_offset < node.log.written_offset]
        )
        if node is not None:
            self.flush_log(node)

    def flush_log(self, node: Node) -> None:
        """The disk has all that was written, which may acknowledge it."""
        node.log.flush()
        replica = node.replica
        if isinstance(replica, Leader):
            before = replica.high_watermark
            replica.advance()
            self._reconciler.advanced(node, replica, before)
