"""Leaders propose in-sync replicas and the controller elects: transactions on their way to the metadata store."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final

from coordinator.controller import writes
from coordinator.controller.core import PartitionView, decide
from coordinator.metadata.authority import Compare, Operation, Put
from coordinator.replication import proposals
from coordinator.replication.leader import Leader
from coordinator.replication.partition import PartitionRegistration
from tests.simulation.replicas.cluster import Cluster
from tests.simulation.replicas.node import CONTROLLER, PART, REASSIGN, Node, live_key
from tests.simulation.replicas.reconciler import Reconciler

MAX_TRANSACTIONS: Final = 6


@dataclass(slots=True)
class Asked:
    """A transaction on its way to the metadata store."""

    node: Node
    compare: list[Compare]
    operations: list[Operation]
    leader: Leader | None
    """Whose proposal it is; None for one of a controller."""


class MetadataWrites:
    """Proposals and the controller's decisions, whose outcome may be unknown to who asked."""

    def __init__(self, cluster: Cluster, reconciler: Reconciler) -> None:
        self._cluster = cluster
        self._reconciler = reconciler
        self.transactions: list[Asked] = []
        self.ends: list[tuple[Leader, Node, int]] = []
        """Proposals that ended: whose, where, and the revision that a leader was told, 0 for none."""

    def propose(self) -> None:
        """Some leader proposes other in-sync replicas."""
        found = self._cluster.a_leader()
        if found is not None and len(self.transactions) < MAX_TRANSACTIONS:
            self.propose_by(found[0])

    def propose_by(self, node: Node) -> None:
        """A leader proposes other in-sync replicas if it has reason to."""
        replica = node.replica
        if not isinstance(replica, Leader):
            return
        proposal = replica.propose(node.live, self._cluster.now_ms)
        if proposal is None:
            return
        self._cluster.say(f"node {node.id} proposes {dict(proposal.registration.isr)} at {proposal.partition_epoch}")
        key = f"{PART}{node.topic_id}"
        compare = proposals.conditions(proposal, key, live_key)
        self.transactions.append(Asked(node, compare, [proposals.write(proposal, key, _same)], replica))

    def transact(self) -> None:
        """Some transaction arrives at the metadata store, once, twice or never."""
        if not self.transactions:
            return
        asked = self.transactions.pop(int(self._cluster.random() * len(self.transactions)))
        unknown = not self._cluster.calm and "unknown outcomes" in self._cluster.on and self._cluster.random() < 0.4
        if unknown and self._cluster.random() < 0.5:
            self._cluster.say(f"a transaction of node {asked.node.id} is lost")
            if asked.leader is not None:
                self.ends.append((asked.leader, asked.node, 0))
            return
        delta = self._cluster.fenced_transaction(asked.compare, asked.operations)
        outcome = "is refused" if delta is None else "takes effect"
        self._cluster.say(f"a transaction of node {asked.node.id} {outcome}{' unheard' * unknown}")
        if unknown and self._cluster.random() < 0.3:
            self.transactions.append(asked)  # somebody between carries it out twice
        elif asked.leader is not None:
            self.ends.append((asked.leader, asked.node, 0 if delta is None or unknown else delta.revision))

    def end_proposal(self) -> None:
        """Some leader hears what became of its proposal."""
        if not self.ends:
            return
        leader, node, revision = self.ends.pop(int(self._cluster.random() * len(self.ends)))
        if revision and node.up and node.replica is leader:
            while node.mirror.revision < revision and self._reconciler.take_delta(node):
                self._reconciler.reconcile(node)
        leader.proposal_ended()

    def control(self) -> None:
        """Some node acts as controller."""
        node = self._cluster.any_node()
        if node is not None and len(self.transactions) < MAX_TRANSACTIONS:
            self.control_by(node)

    def control_by(self, node: Node) -> None:
        """A node becomes controller if there is none; if it is, it decides about the partition."""
        known = node.mirror.get(CONTROLLER)
        if known is None:
            compare = [Compare(CONTROLLER, "create", 0), Compare(live_key(node.id), "create", node.me.broker_epoch)]
            if self._cluster.authority.get(live_key(node.id)) is not None:
                self._cluster.authority.transaction(compare, [Put(CONTROLLER, node.me, node.lease)])
            return
        if known.value != node.me or node.part is None:
            return
        target = node.mirror.get(REASSIGN)
        view = PartitionView(node.part.value, node.part.mod_revision, None if target is None else target.value)
        update = decide(node.topic_id, view, node.live)
        if update is None:
            return
        key = f"{PART}{node.topic_id}"
        fence = Compare(CONTROLLER, "create", known.create_revision)
        compare = writes.conditions(update, key, live_key, fence)
        if target is not None:
            compare.append(Compare(REASSIGN, "mod", target.mod_revision))
        operations = writes.operations(update, key, REASSIGN, _same)
        self._cluster.say(f"controller {node.id}: {update.reason}: {update.registration}")
        self.transactions.append(Asked(node, compare, operations, None))


def _same(registration: PartitionRegistration) -> Any:
    return registration
