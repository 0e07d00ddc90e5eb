"""The nodes of a history, their metadata store and what an observer of both knows.

A write about the partition is checked before it counts: whether it is fenced, and whether it changes only what it may.
"""

from __future__ import annotations

from random import Random

from coordinator.metadata.authority import (
    Authority,
    Compare,
    Delete,
    Delta,
    Operation,
    Put,
)
from coordinator.replication.leader import Leader
from coordinator.replication.partition import PartitionRegistration
from tests.simulation.replicas.facts import Facts, check_write, violated
from tests.simulation.replicas.node import CONTROLLER, PART, REASSIGN, TOPIC, Node
from tests.simulation.replicas.plan import OS_FLUSH, Plan


class Cluster:
    """What all parts of a history share."""

    def __init__(self, plan: Plan, trace: list[str] | None) -> None:
        self.plan = plan
        self.trace = trace
        self.steps = 0
        self.now_ms = 0
        self.calm = False
        self.random = Random(plan.seed).random
        self.on = frozenset(plan.behaviours)
        self.authority = Authority()
        self.nodes = {number: Node(number, plan.lag_ms) for number in range(1, plan.nodes + 1)}
        self.all_nodes = list(self.nodes.values())
        self.flush_at_acknowledgement = OS_FLUSH not in self.on
        self.topic_id = 0
        self.facts = self._new_facts()

    def _new_facts(self) -> Facts:
        return Facts(self.flush_at_acknowledgement, "compaction" in self.on)

    def say(self, text: str) -> None:
        """A line of the trace."""
        if self.trace is not None:
            self.trace.append(f"{self.steps:5} {self.now_ms:6} ms  {text}")

    def serving(self) -> list[Node]:
        """Nodes whose processes run."""
        return [node for node in self.all_nodes if node.up and not node.paused]

    def one_of(self, nodes: list[Node]) -> Node | None:
        """A random one of some nodes; None when there is none."""
        return nodes[int(self.random() * len(nodes))] if nodes else None

    def any_node(self) -> Node | None:
        """One of those whose processes run."""
        return self.one_of(self.serving())

    def a_leader(self) -> tuple[Node, Leader] | None:
        """One of those that lead, or believe that they do."""
        node = self.one_of([node for node in self.serving() if isinstance(node.replica, Leader)])
        return None if node is None or not isinstance(node.replica, Leader) else (node, node.replica)

    def make_topic(self) -> None:
        """The topic, on the next replicas; one of the same name is deleted before."""
        self.topic_id += 1
        numbers = list(self.nodes)
        first = int(self.random() * len(numbers))
        replicas = tuple((numbers + numbers)[first : first + self.plan.replicas])
        isr = {number: self.nodes[number].me.broker_epoch for number in replicas}
        min_isr = self.plan.min_isr
        known = PartitionRegistration(replicas, self.nodes[replicas[0]].me, 0, isr, min_isr)
        gone = Delete(f"{PART}{self.topic_id - 1}")
        operations: list[Operation] = [gone, Delete(REASSIGN), Put(TOPIC, self.topic_id)]
        self.facts = self._new_facts()
        self.authority.transaction([], [*operations, Put(f"{PART}{self.topic_id}", known)])
        self.say(f"[new topics] topic {self.topic_id} on {replicas}")

    def fenced_transaction(self, compare: list[Compare], operations: list[Operation]) -> Delta | None:
        """A write about the partition, which has to be fenced and to change only what it may."""
        key = f"{PART}{self.topic_id}"
        before = self.authority.get(key)
        delta = self.authority.transaction(compare, operations)
        if delta is None:
            return None
        for name, _, after in delta.changes:
            if name.startswith(PART) and after is not None:
                what = {(condition.key, condition.what) for condition in compare}
                by_leader = any(one.startswith("live/") and kind == "create" for one, kind in what)
                if (name, "mod") not in what or not ((CONTROLLER, "create") in what or by_leader):
                    violated("metadata_is_written_with_a_fence", f"{name} is written if {compare}")
                if name == key and before is not None:
                    check_write(before.value, after.value)
                    self._check_members(after.value)
        return delta

    def _check_members(self, known: PartitionRegistration, first: int = 0) -> None:
        if not self.facts.acknowledged:
            return
        for number, broker_epoch in known.isr.items():
            node = self.nodes[number]
            if broker_epoch >= node.clean_since and not node.doubt:
                self.facts.check_member(node, known, first)

    def check_all(self, first: int = 0) -> None:
        """Looks whether the in-sync replicas have what was acknowledged, from offset ``first`` on."""
        part = self.authority.get(f"{PART}{self.topic_id}")
        assert part is not None
        self._check_members(part.value, first)
