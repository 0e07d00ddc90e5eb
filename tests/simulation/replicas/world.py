"""One history: nodes with the real cores, messages between them, transactions on a real ``Authority``; a step at a time.

There is no loop. Each step draws what happens next: a message arrives, a log is written or synced, a mirror moves on, a
controller looks. Nothing is ever on time, so every order that could be is drawn some time.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from coordinator.controller.core import candidates
from coordinator.replication.leader import Leader
from coordinator.replication.partition import PartitionRegistration
from tests.simulation.replicas.administration import Administration
from tests.simulation.replicas.appends import Appends
from tests.simulation.replicas.cluster import Cluster
from tests.simulation.replicas.facts import violated
from tests.simulation.replicas.faults import Faults
from tests.simulation.replicas.fetches import Fetches
from tests.simulation.replicas.metadata_writes import MetadataWrites
from tests.simulation.replicas.node import PART, REASSIGN
from tests.simulation.replicas.plan import Plan
from tests.simulation.replicas.processes import Processes
from tests.simulation.replicas.reconciler import Reconciler

CALM_ROUNDS: Final = 150


class World(Cluster):
    """See the module text."""

    def __init__(self, plan: Plan, trace: list[str] | None) -> None:
        super().__init__(plan, trace)
        self._reconciler = Reconciler(self)
        self._appends = Appends(self, self._reconciler)
        self._fetches = Fetches(self, self._reconciler, self._appends)
        self._metadata_writes = MetadataWrites(self, self._reconciler)
        self._processes = Processes(self, self._reconciler)
        self._administration = Administration(self)
        self._table = self._weighted()
        self._events = Faults(self).events() + self._administration.events()
        self._set_up()

    def _weighted(self) -> list[Callable[[], None]]:
        weights: list[tuple[Callable[[], None], int]] = [
            (self._reconciler.observe, 18),
            (self._appends.append, 12),
            (self._appends.write, 8),
            (self._appends.flush, 14),
            (self._fetches.fetch, 16),
            (self._fetches.deliver, 32),
            (self._fetches.serve, 6),
            (self._metadata_writes.propose, 8),
            (self._metadata_writes.transact, 7),
            (self._metadata_writes.end_proposal, 4),
            (self._metadata_writes.control, 5),
            (self._processes.renew, 12),
            (self._processes.start, 2),
        ]
        if "deletions" in self.on:
            weights.append((self._administration.delete_records, 3))
        if "compaction" in self.on:
            weights.append((self._administration.compact, 6))
        return [step for step, weight in weights for _ in range(weight)]

    def _set_up(self) -> None:
        for node in self.all_nodes:
            self._processes.begin(node)
        self.make_topic()
        for node in self.all_nodes:
            self._reconciler.catch_up(node)

    def run(self) -> None:
        """All of it, and the calm after it."""
        random, table = self.random, self._table
        events, gap = self._events, 1 / self.plan.event_gap
        size = len(table)
        for _ in range(self.plan.steps):
            self.steps += 1
            self.now_ms += int(random() * 20)
            table[int(random() * size)]()
            if events and random() < gap:
                events[int(random() * len(events))]()
        self._settle()

    def _settle(self) -> None:
        self.calm = True
        self.say("all faults stop")
        for node in self.all_nodes:
            node.paused = False
            if node.up and node.leaves:
                self._processes.stop(node)
        wrong = "it was not looked at"
        for _ in range(CALM_ROUNDS):
            self._calm_round()
            wrong = self._unsettled()
            if not wrong:
                return
        violated("everything_settles_after_the_calm", wrong)

    def _calm_round(self) -> None:
        self.now_ms += 40
        for node in self.all_nodes:
            self.steps += 6
            if not node.up:
                self._processes.begin(node)
            self._processes.renew_lease(node)
            while self._reconciler.take_delta(node):
                self._reconciler.reconcile(node)
            self._appends.write_log(node)
            self._appends.flush_log(node)
            self._metadata_writes.control_by(node)
            self._metadata_writes.propose_by(node)
            self._fetches.fetch_by(node)
            self._fetches.serve_by(node)
        while self._metadata_writes.transactions:
            self._metadata_writes.transact()
        while self._metadata_writes.ends:
            self._metadata_writes.end_proposal()
        for _ in range(len(self._fetches.messages)):
            self.steps += 1
            self._fetches.deliver()
        self._processes.expire()

    def _unsettled(self) -> str:
        """What is not as it has to be; "" when all is."""
        part = self.authority.get(f"{PART}{self.topic_id}")
        assert part is not None
        known: PartitionRegistration = part.value
        for node in self.all_nodes:
            if not node.up or node.mirror.revision != self.authority.revision:
                return f"node {node.id} has not seen all of the metadata"
        if known.leader is None or self.nodes[known.leader.node].me != known.leader:
            live = self.all_nodes[0].live
            lost = all(self.nodes[one].harmed >= broker_epoch for one, broker_epoch in known.isr.items())
            if not candidates(known, live) and lost:
                return ""  # every one of them has lost something: an administrator has to decide
            return f"none leads {known}, alive are {live}"
        leader = self.nodes[known.leader.node]
        if not isinstance(leader.replica, Leader) or leader.replica.leader_epoch != known.leader_epoch:
            return f"node {leader.id} does not lead {known}"
        if set(known.isr) != set(known.replicas) or known.adding or self.authority.get(REASSIGN) is not None:
            return f"not all are in sync: {known}"
        end = leader.log.end_offset
        for number in known.replicas:
            log = self.nodes[number].log
            if (log.end_offset, log.flushed_offset) != (end, end):
                return f"the log of node {number} is not the leader's: it ends at {log.end_offset}, that at {end}"
            if log.start_offset < leader.log.start_offset:  # later is possible: a deletion that was not answered
                return (
                    f"the log of node {number} begins at {log.start_offset}, the leader's at {leader.log.start_offset}"
                )
        if leader.replica.high_watermark < end:
            return f"the high watermark is {leader.replica.high_watermark}, all logs end at {end}"
        return ""
