"""One history: nodes with the real cores, messages between them, transactions on a real ``Authority``; a step at a time.

There is no loop. Each step draws what happens next: a message arrives, a log is written or synced, a mirror moves on, a
controller looks. Nothing is ever on time, so every order that could be is drawn some time.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from random import Random
from typing import Any, Final

from coordinator.controller import writes
from coordinator.controller.core import PartitionView, candidates, decide
from coordinator.metadata.authority import (
    Authority,
    CompactedError,
    Compare,
    Delete,
    DeletePrefix,
    Delta,
    Operation,
    Put,
)
from coordinator.nodes import cleanliness
from coordinator.nodes.cleanliness import Found, NodeRecord, judge
from coordinator.replication import proposals
from coordinator.replication.fetch import FetchAnswer, FetchPartition
from coordinator.replication.follower import Follower
from coordinator.replication.leader import Leader
from coordinator.replication.log import AppendAsFollower, NotAContinuationError, ResetTo, TruncateTo
from coordinator.replication.partition import Incarnation, PartitionRegistration
from tests.simulation.replicas.facts import Facts, check_write, violated
from tests.simulation.replicas.log import SimLog
from tests.simulation.replicas.node import (
    CONTROLLER,
    DELETE_RETENTION_MS,
    PART,
    REASSIGN,
    TOPIC,
    Disk,
    Node,
    live_key,
    start_key,
)
from tests.simulation.replicas.plan import OS_FLUSH, Plan

KEYS: Final = 4
TTL_MS: Final = 2_000
MAX_MESSAGES: Final = 10
MAX_TRANSACTIONS: Final = 6
MAX_RECORDS: Final = 24
"""Of a log; when it has more none are appended until some are deleted or the topic is new."""
CALM_ROUNDS: Final = 150


@dataclass(slots=True)
class Asked:
    """A transaction on its way to the metadata store."""

    node: Node
    compare: list[Compare]
    operations: list[Operation]
    leader: Leader | None
    """Whose proposal it is; None for one of a controller."""


class World:
    """See the module text."""

    def __init__(self, plan: Plan, trace: list[str] | None) -> None:
        self.plan = plan
        self.trace = trace
        self.steps = 0
        self.now_ms = 0
        self.calm = False
        random = Random(plan.seed)
        self.random = random.random
        self.on = frozenset(plan.behaviours)
        self.authority = Authority()
        self.nodes = {number: Node(number, plan.lag_ms) for number in range(1, plan.nodes + 1)}
        self._all = list(self.nodes.values())
        self._flush_at_acknowledgement = OS_FLUSH not in self.on
        self.messages: list[tuple[int, int, FetchPartition | FetchAnswer, int]] = []
        """Receiver, topic id, what, and session of a fetch."""
        self.transactions: list[Asked] = []
        self._ends: list[tuple[Leader, Node, int]] = []
        self._value = 0
        self._starts = 0
        self._topic_id = 0
        self.facts = self._new_facts()
        self._table = self._weighted()
        self._events = self._drawn_events()
        self._set_up()

    def _new_facts(self) -> Facts:
        return Facts(self._flush_at_acknowledgement, "compaction" in self.on)

    def _weighted(self) -> list[Callable[[], None]]:
        weights: list[tuple[Callable[[], None], int]] = [
            (self._observe, 18),
            (self._append, 12),
            (self._write, 8),
            (self._flush, 14),
            (self._fetch, 16),
            (self._deliver, 32),
            (self._serve, 6),
            (self._propose, 8),
            (self._transact, 7),
            (self._end_proposal, 4),
            (self._control, 5),
            (self._renew, 12),
            (self._start, 2),
        ]
        if "deletions" in self.on:
            weights.append((self._delete_records, 3))
        if "compaction" in self.on:
            weights.append((self._compact, 6))
        return [step for step, weight in weights for _ in range(weight)]

    def _drawn_events(self) -> list[Callable[[], None]]:
        known: dict[str, Callable[[], None]] = {
            "kills": self._kill,
            "power cuts": self._cut_power,
            "lossy disks": self._lose_disk,
            "replaced disks": self._replace_disk,
            "old images": self._return_image,
            "pauses": self._pause,
            "early lease loss": self._lose_lease,
            "refused writes": self._refuse_write,
            "drains": self._drain,
            "compacted metadata": self._compact_metadata,
            "reassignments": self._reassign,
            "new topics": self._new_topic,
        }
        return [event for name, event in known.items() if name in self.on]

    def _set_up(self) -> None:
        for node in self._all:
            self._begin(node)
        self._make_topic()
        for node in self._all:
            self._catch_up(node)

    def say(self, text: str) -> None:
        """A line of the trace."""
        if self.trace is not None:
            self.trace.append(f"{self.steps:5} {self.now_ms:6} ms  {text}")

    # The history

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
        for node in self._all:
            node.paused = False
            if node.up and node.leaves:
                self._stop(node)
        wrong = "it was not looked at"
        for _ in range(CALM_ROUNDS):
            self._calm_round()
            wrong = self._unsettled()
            if not wrong:
                return
        violated("everything_settles_after_the_calm", wrong)

    def _calm_round(self) -> None:
        self.now_ms += 40
        for node in self._all:
            self.steps += 6
            if not node.up:
                self._begin(node)
            self._renew_lease(node)
            while self._take_delta(node):
                self._reconcile(node)
            self._write_log(node)
            self._flush_log(node)
            self._control_by(node)
            self._propose_by(node)
            self._fetch_by(node)
            self._serve_by(node)
        while self.transactions:
            self._transact()
        while self._ends:
            self._end_proposal()
        for _ in range(len(self.messages)):
            self.steps += 1
            self._deliver()
        self._expire()

    def _unsettled(self) -> str:
        """What is not as it has to be; "" when all is."""
        part = self.authority.get(f"{PART}{self._topic_id}")
        assert part is not None
        known: PartitionRegistration = part.value
        for node in self._all:
            if not node.up or node.mirror.revision != self.authority.revision:
                return f"node {node.id} has not seen all of the metadata"
        if known.leader is None or self.nodes[known.leader.node].me != known.leader:
            live = self._all[0].live
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

    # Metadata

    def _make_topic(self) -> None:
        self._topic_id += 1
        numbers = list(self.nodes)
        first = int(self.random() * len(numbers))
        replicas = tuple((numbers + numbers)[first : first + self.plan.replicas])
        isr = {number: self.nodes[number].me.broker_epoch for number in replicas}
        min_isr = self.plan.min_isr
        known = PartitionRegistration(replicas, self.nodes[replicas[0]].me, 0, isr, min_isr)
        operations: list[Operation] = [DeletePrefix(PART), Delete(REASSIGN), Put(TOPIC, self._topic_id)]
        self.facts = self._new_facts()
        self.authority.transaction([], [*operations, Put(f"{PART}{self._topic_id}", known)])
        self.say(f"[new topics] topic {self._topic_id} on {replicas}")

    def _transaction(self, compare: list[Compare], operations: list[Operation]) -> Delta | None:
        """A write about the partition, which has to be fenced and to change only what it may."""
        key = f"{PART}{self._topic_id}"
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

    def _check_all(self, first: int = 0) -> None:
        part = self.authority.get(f"{PART}{self._topic_id}")
        assert part is not None
        self._check_members(part.value, first)

    def _take_delta(self, node: Node) -> bool:
        """Moves a node's mirror by one delta; False when it has seen everything. The replica is not told yet."""
        try:
            delta = next(self.authority.since(node.mirror.revision), None)
        except CompactedError:
            return self._list(node)
        if delta is None or not node.mirror.apply(delta):
            return False
        node.take(delta.changes)
        return True

    def _list(self, node: Node) -> bool:
        delta = node.mirror.replace(self.authority.range(""), self.authority.revision)
        if delta is None:
            return False
        node.take(delta.changes)
        return True

    def _catch_up(self, node: Node) -> None:
        while node.mirror.revision < self.authority.revision and self._take_delta(node):
            self._reconcile(node)

    def _observe(self) -> None:
        revision = self.authority.revision
        node = self._one([node for node in self._serving() if node.mirror.revision < revision])
        if node is None:
            return
        turns = 1 if "stale mirrors" in self.on else 3
        while turns and self._take_delta(node):
            self._reconcile(node)
            turns -= 1

    # Replicas

    def _reconcile(self, node: Node) -> None:
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
            self._advanced(node, replica, before)

    def _take_role(self, node: Node, known: PartitionRegistration) -> None:
        assert node.part is not None
        assert known.leader is not None
        if known.leads(node.me):
            node.log.begin_epoch(known.leader_epoch)
            replica = node.replica = node.lead(node.part, self.now_ms)
            self.say(
                f"node {node.id} leads epoch {known.leader_epoch} from {replica.start_offset}, in sync {dict(known.isr)}"
            )
            if node.topic_id == self._topic_id:
                self.facts.epoch_began(node.me, replica, node.log)
            self._advanced(node, replica, 0)
        elif known.leader.node != node.id:
            node.replica = node.follow(known.leader_epoch)
            self.say(f"node {node.id} follows {known.leader} in epoch {known.leader_epoch}")

    def _remove_log(self, node: Node) -> None:
        self.say(f"node {node.id} removes its log")
        node.stop_replica()
        node.disk = Disk(record=node.disk.record)
        self._check_all()

    def _open_log(self, node: Node) -> None:
        """A replica that is new here, or whose directory is of a namesake that was deleted."""
        node.stop_replica()
        assert node.topic_id is not None
        partition = (str(node.topic_id), 0)
        disk = node.disk
        found = None if disk.topic_id is None else str(disk.topic_id)
        opening = cleanliness.opening(partition, found, disk.inventory)
        self.say(f"node {node.id}: the log of topic {node.topic_id} is {opening}")
        if opening != "opened":
            node.disk = Disk(record=disk.record, inventory=disk.inventory | {partition})
        node.disk.topic_id = node.topic_id
        node.disk.inventory.add(partition)
        if node.topic_id == self._topic_id:
            self.facts.appended(node.log, 0)

    def _advanced(self, node: Node, replica: Leader, before: int) -> None:
        if replica.high_watermark > before and node.topic_id == self._topic_id:
            self.say(f"node {node.id}: high watermark {replica.high_watermark} in epoch {replica.leader_epoch}")
            self.facts.advanced(replica, node.log, before)
            self._check_all(before)
        if node.deletions and replica.is_deleted(node.deletions[0]):
            offset = node.deletions.pop(0)
            self.say(f"node {node.id}: records before {offset} are deleted")
            if node.topic_id == self._topic_id:
                self.facts.deleted(offset)

    # Steps

    def _serving(self) -> list[Node]:
        return [node for node in self._all if node.up and not node.paused]

    def _one(self, nodes: list[Node]) -> Node | None:
        return nodes[int(self.random() * len(nodes))] if nodes else None

    def _any(self) -> Node | None:
        return self._one(self._serving())

    def _a_leader(self) -> tuple[Node, Leader] | None:
        """One of those that lead, or believe that they do."""
        node = self._one([node for node in self._serving() if isinstance(node.replica, Leader)])
        return None if node is None or not isinstance(node.replica, Leader) else (node, node.replica)

    def _append(self) -> None:
        found = self._a_leader()
        if found is None:
            return
        node, replica = found
        log = node.log
        if len(log.records) >= MAX_RECORDS or not replica.has_enough_in_sync(node.live, self.now_ms):
            return
        before = log.end_offset
        records: list[tuple[int, int | None]] = []
        for _ in range(1 + (self.random() < 0.3)):
            self._value += 1
            records.append((int(self.random() * KEYS), None if self.random() < 0.25 else self._value))
        log.append(records)
        replica.appended(before, self.now_ms)
        self.say(f"node {node.id} appends {records} at {before} in epoch {replica.leader_epoch}")

    def _write(self) -> None:
        node = self._one([node for node in self._serving() if node.log.written_offset < node.log.end_offset])
        if node is not None:
            self._write_log(node)
            if not self._flush_at_acknowledgement:
                self._flush_log(node)

    def _write_log(self, node: Node) -> None:
        log, before = node.log, node.log.written_offset
        log.write()
        if log.written_offset > before and node.topic_id == self._topic_id and node.replica is not None:
            self.facts.appended(log, before)

    def _flush(self) -> None:
        node = self._one([node for node in self._serving() if node.log.flushed_offset < node.log.written_offset])
        if node is not None:
            self._flush_log(node)

    def _flush_log(self, node: Node) -> None:
        node.log.flush()
        replica = node.replica
        if isinstance(replica, Leader):
            before = replica.high_watermark
            replica.advance()
            self._advanced(node, replica, before)

    def _fetch(self) -> None:
        node = self._one([node for node in self._serving() if isinstance(node.replica, Follower)])
        if node is not None and len(self.messages) < MAX_MESSAGES:
            self._fetch_by(node)

    def _fetch_by(self, node: Node) -> None:
        replica, known = node.replica, node.registration
        if not isinstance(replica, Follower) or known is None or known.leader is None or node.topic_id is None:
            return
        request = replica.fetch(self.now_ms)
        if request is not None:
            if self.random() < 0.1:
                node.session += 1
            self.messages.append((known.leader.node, node.topic_id, request, node.session))
            self.say(f"node {node.id} asks {known.leader.node}: {tuple(request[1:])}")

    def _deliver(self) -> None:
        messages = self.messages
        if not messages:
            return
        place = int(self.random() * len(messages))
        message = messages[place]
        if not self.calm and self.random() < self.plan.loss:
            if "doubled" in self.on and self.random() < 0.5:
                messages.append(message)
            elif "lost" in self.on:
                messages[place] = messages[-1]
                messages.pop()
                return
        messages[place] = messages[-1]
        messages.pop()
        number, topic_id, content, session = message
        node = self.nodes[number]
        if not node.up or node.topic_id != topic_id:
            return
        if node.paused:
            messages.append(message)
        elif isinstance(content, FetchPartition):
            self._take_fetch(node, content, session)
        else:
            self._take_answer(node, content)

    def _take_fetch(self, node: Node, request: FetchPartition, number: int) -> None:
        replica = node.replica
        session = node.sessions.open(request.follower, number)
        if not isinstance(replica, Leader) or session is None:
            return
        before = replica.high_watermark
        answer = replica.fetch(request, node.live, self.now_ms)
        self._advanced(node, replica, before)
        if answer.error_code or answer.diverging_end >= 0:
            self._send_answer(node, request, answer)
            return
        assert node.topic_id is not None
        session.arm(node.topic_id, request)
        if self.random() < 0.7:
            self._serve_to(node, replica, request)

    def _serve(self) -> None:
        found = self._a_leader()
        if found is not None:
            self._serve_by(found[0])

    def _serve_by(self, node: Node) -> None:
        replica = node.replica
        if not isinstance(replica, Leader) or node.topic_id is None:
            return
        for session in node.sessions.all():
            request = session.armed(node.topic_id)
            if request is not None:
                self._serve_to(node, replica, request)

    def _serve_to(self, node: Node, replica: Leader, request: FetchPartition) -> None:
        assert node.topic_id is not None
        answer = replica.answer(request)
        if answer.error_code:
            node.sessions.disarm(request.follower, node.topic_id)
            self._send_answer(node, request, answer)
            return
        records = node.log.read(request.fetch_offset, replica.readable_end, 1 + int(self.random() * 4))
        if not records and not self.calm and self.random() < 0.6:
            return  # it is held
        end = records[-1].next_offset if records else request.fetch_offset
        epochs = node.log.epochs.within(request.fetch_offset, end)
        node.sessions.disarm(request.follower, node.topic_id)
        self._send_answer(node, request, answer._replace(records=records, epochs=epochs))

    def _send_answer(self, node: Node, request: FetchPartition, answer: FetchAnswer) -> None:
        assert node.topic_id is not None
        self.say(f"node {node.id} answers {request.follower.node}: {_said(answer)}")
        self.messages.append((request.follower.node, node.topic_id, answer, 0))

    def _take_answer(self, node: Node, answer: FetchAnswer) -> None:
        replica, log = node.replica, node.log
        if not isinstance(replica, Follower):
            return
        current = replica.is_current(answer)
        order = replica.answered(answer, self.now_ms)
        if isinstance(order, AppendAsFollower):
            before = log.end_offset
            try:
                log.append_as_follower(order.records, order.epochs)
            except NotAContinuationError as error:
                violated("logs_have_no_gaps", f"node {node.id} refuses what its leader sent: {error}")
            if not self._flush_at_acknowledgement:
                log.flush()
            if node.topic_id == self._topic_id:
                self.facts.appended(log, before)
        elif isinstance(order, TruncateTo | ResetTo):
            self.say(f"node {node.id}: {order}")
            if isinstance(order, TruncateTo):
                log.truncate_to(order.offset)
            else:
                log.reset_to(order.offset)
            node.note_hints(replica)
            if node.topic_id == self._topic_id:
                self._check_all()
            return
        if current:
            self._done(node, replica, answer)

    def _done(self, node: Node, replica: Follower, answer: FetchAnswer) -> None:
        deletion = replica.done(answer)
        if node.topic_id == self._topic_id:
            self.facts.follower_advanced(node, replica.high_watermark)
        if deletion is not None:
            self._write_log(node)
            node.log.flush()
            node.log.delete_before(deletion.offset)
        if self.random() < 0.1:
            node.note_hints(replica)

    def _propose(self) -> None:
        found = self._a_leader()
        if found is not None and len(self.transactions) < MAX_TRANSACTIONS:
            self._propose_by(found[0])

    def _propose_by(self, node: Node) -> None:
        replica = node.replica
        if not isinstance(replica, Leader):
            return
        proposal = replica.propose(node.live, self.now_ms)
        if proposal is None:
            return
        self.say(f"node {node.id} proposes {dict(proposal.registration.isr)} at {proposal.partition_epoch}")
        key = f"{PART}{node.topic_id}"
        compare = proposals.conditions(proposal, key, live_key)
        self.transactions.append(Asked(node, compare, [proposals.write(proposal, key, _same)], replica))

    def _transact(self) -> None:
        if not self.transactions:
            return
        asked = self.transactions.pop(int(self.random() * len(self.transactions)))
        unknown = not self.calm and "unknown outcomes" in self.on and self.random() < 0.4
        if unknown and self.random() < 0.5:
            self.say(f"a transaction of node {asked.node.id} is lost")
            if asked.leader is not None:
                self._ends.append((asked.leader, asked.node, 0))
            return
        delta = self._transaction(asked.compare, asked.operations)
        outcome = "is refused" if delta is None else "takes effect"
        self.say(f"a transaction of node {asked.node.id} {outcome}{' unheard' * unknown}")
        if unknown and self.random() < 0.3:
            self.transactions.append(asked)  # somebody between carries it out twice
        elif asked.leader is not None:
            self._ends.append((asked.leader, asked.node, 0 if delta is None or unknown else delta.revision))

    def _end_proposal(self) -> None:
        if not self._ends:
            return
        leader, node, revision = self._ends.pop(int(self.random() * len(self._ends)))
        if revision and node.up and node.replica is leader:
            while node.mirror.revision < revision and self._take_delta(node):
                self._reconcile(node)
        leader.proposal_ended()

    # The controller

    def _control(self) -> None:
        node = self._any()
        if node is not None and len(self.transactions) < MAX_TRANSACTIONS:
            self._control_by(node)

    def _control_by(self, node: Node) -> None:
        known = node.mirror.get(CONTROLLER)
        if known is None:
            compare = [Compare(CONTROLLER, "create", 0), Compare(live_key(node.id), "create", node.me.broker_epoch)]
            if self.authority.get(live_key(node.id)) is not None:
                self.authority.transaction(compare, [Put(CONTROLLER, node.me, node.lease)])
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
        self.say(f"controller {node.id}: {update.reason}: {update.registration}")
        self.transactions.append(Asked(node, compare, operations, None))

    # Nodes

    def _begin(self, node: Node) -> None:
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
        registered = self.authority.get(start_key(node.id))
        disk = node.disk
        lost = node.doubt and self._recovery_sees(node)
        topic = self.authority.get(TOPIC)
        if topic is not None:
            known: PartitionRegistration = self.authority.get(f"{PART}{topic.value}").value  # type: ignore[union-attr]
            found = None if disk.topic_id is None else str(disk.topic_id)
            opening = cleanliness.opening((str(topic.value), 0), found, disk.inventory)
            lost = lost or (known.has(node.id) and opening == "lost")
        return Found(
            "" if registered is None else registered.value, str(node.boot), self._flush_at_acknowledgement, lost
        )

    def _recovery_sees(self, node: Node) -> bool:
        """A log that ends before its checkpoint; without a directory only the inventory tells."""
        return node.damaged and node.disk.topic_id is not None and self._flush_at_acknowledgement

    def _register(self, node: Node, start: str, found: Found) -> None:
        record = node.disk.record
        if record is not None:
            record = record._replace(starts=(record.starts[-1], start))
        verdict = judge(record, found)
        old = self.authority.get(live_key(node.id))
        if old is not None:
            self.authority.revoke(old.lease)
        node.lease = self.authority.grant(TTL_MS, self.now_ms)
        value = (verdict.clean_since, True)
        delta = self.authority.transaction(
            [], [Put(live_key(node.id), value, node.lease), Put(start_key(node.id), start)]
        )
        assert delta is not None
        node.me = Incarnation(node.id, delta.revision)
        clean_since = verdict.clean_since or delta.revision
        node.disk.record = NodeRecord((start,), clean_since, str(node.boot), False)
        node.doubt = node.damaged = False
        self.say(f"node {node.id} is registered as {node.me}, clean since {clean_since} {verdict.reason}")
        self._list(node)
        self._reconcile(node)
        self._check_all_if_there()

    def _check_all_if_there(self) -> None:
        if self._topic_id:
            self._check_all()

    def _renew(self) -> None:
        node = self._any()
        if node is not None:
            self._renew_lease(node)
        self._expire()

    def _expire(self) -> None:
        for delta in self.authority.expire(self.now_ms):
            self.say(f"leases end: {[change.key for change in delta.changes]}")

    def _renew_lease(self, node: Node) -> None:
        if not self.authority.renew(node.lease, self.now_ms):
            self.say(f"node {node.id} has lost its lease and leads nothing any more")
            self._starts += 1
            node.stop_replica()
            record = node.disk.record
            assert record is not None
            found = Found(record.starts[-1], record.boot_id, self._flush_at_acknowledgement, False)
            self._register(node, f"start {self._starts}", found)

    def _start(self) -> None:
        node = self._one([node for node in self._all if node.paused or node.leaves or not node.up])
        if node is None:
            return
        if node.paused:
            node.paused = False
            self.say(f"node {node.id} goes on")
        elif not node.up:
            self._begin(node)
        elif node.leaves and not isinstance(node.replica, Leader):
            self._stop(node)

    def _stop(self, node: Node) -> None:
        """A controlled stop: the last flush, hints, the clean flag, and the lease is given back."""
        node.stop_replica()
        node.log.write()
        node.log.flush()
        assert node.disk.record is not None
        node.disk.record = node.disk.record._replace(stopped_cleanly=True)
        self.authority.revoke(node.lease)
        node.up, node.leaves = False, False
        self.say(f"[drains] node {node.id} has stopped")

    # Events

    def _end(self, node: Node) -> None:
        node.stop_replica(noting=False)
        node.up = node.paused = node.leaves = False
        if "old images" in self.on and self.random() < 0.5:
            node.take_image()

    def _victim(self) -> Node | None:
        node = self._all[int(self.random() * len(self._all))]
        return node if node.up else None

    def _kill(self) -> None:
        node = self._victim()
        if node is not None:
            self._end(node)
            node.log.refuse_write()
            self.say(f"[kills] node {node.id} is killed")

    def _cut_power(self) -> None:
        nodes = self._all if self.random() < 0.15 else [self._victim()]
        for node in nodes:
            if node is not None and node.up:
                node.log.refuse_write()
                safe = node.log.flushed_offset if self._flush_at_acknowledgement else self._tail(node.log)
                self._lose(node, safe)
                node.boot += 1
                node.doubt = not self._flush_at_acknowledgement
                self._harm(node, node.doubt)
                self._end(node)
                self.say(f"[power cuts] node {node.id} ends at {node.log.end_offset}")
        self._check_all()

    def _tail(self, log: SimLog) -> int:
        ends = [log.start_offset, *(batch.next_offset for batch in log.batches)]
        return ends[max(0, len(ends) - 1 - int(self.random() * 4))]

    def _lose(self, node: Node, safe: int) -> None:
        """Any part of what lies behind ``safe`` is gone."""
        ends = [safe, *(batch.next_offset for batch in node.log.batches if batch.next_offset > safe)]
        node.log.lose(ends[int(self.random() * len(ends))])

    def _harm(self, node: Node, harmed: bool) -> None:
        if harmed:
            node.harmed = self.authority.revision

    def _lose_disk(self) -> None:
        """A power cut after which something is gone that was on disk; or the whole directory of the log."""
        node = self._victim()
        if node is None or self.random() < 0.4:
            return
        node.log.refuse_write()
        if self.random() < 0.3:
            node.disk.log, node.disk.topic_id = SimLog(), None
        else:
            self._lose(node, self._tail(node.log))
        node.boot += 1
        node.doubt = node.damaged = True
        self._harm(node, True)
        self._end(node)
        self.say(f"[lossy disks] node {node.id} ends at {node.log.end_offset}")

    def _replace_disk(self) -> None:
        node = self._victim()
        if node is not None and self.random() < 0.4:
            self._end(node)
            node.disk = Disk()
            node.doubt = True
            self._harm(node, True)
            self.say(f"[replaced disks] node {node.id} has an empty disk")

    def _return_image(self) -> None:
        node = self._all[int(self.random() * len(self._all))]
        image = node.image
        if image is None or node.up or image.record is None or node.disk.record is None:
            return
        if image.record.starts[-1] != node.disk.record.starts[-1]:
            node.disk, node.image = image, None
            node.doubt, node.damaged = True, False
            self._harm(node, True)
            self.say(f"[old images] node {node.id} has the disk of {image.record.starts}")

    def _pause(self) -> None:
        node = self._victim()
        if node is not None:
            node.paused = True
            self.say(f"[pauses] node {node.id} stands still")

    def _lose_lease(self) -> None:
        node = self._victim()
        if node is not None:
            self.authority.revoke(node.lease)
            self.say(f"[early lease loss] of node {node.id}")

    def _refuse_write(self) -> None:
        found = self._a_leader()
        if found is not None:
            found[0].log.refuse_write()
            self.say(f"[refused writes] node {found[0].id} ends at {found[0].log.end_offset} again")

    def _drain(self) -> None:
        node = self._any()
        known = None if node is None else self.authority.get(live_key(node.id))
        if node is not None and known is not None and not node.leaves:
            node.leaves = True
            value = (known.value[0], False)
            self.authority.transaction(
                [Compare(known.key, "create", node.me.broker_epoch)], [Put(known.key, value, known.lease)]
            )
            self.say(f"[drains] node {node.id} is to stop")

    def _compact_metadata(self) -> None:
        self.authority.compact(self.authority.revision - int(self.random() * 3))
        self.say(f"[compacted metadata] up to {self.authority.compacted}")

    def _delete_records(self) -> None:
        found = self._a_leader()
        if found is None:
            return
        node, replica = found
        offset = min(replica.high_watermark, node.log.start_offset + 1 + int(self.random() * 12))
        if offset > node.log.start_offset and not node.deletions and node.topic_id == self._topic_id:
            if any(batch.base_offset < offset < batch.next_offset for batch in node.log.batches):
                return
            self.facts.delete_requested = max(self.facts.delete_requested, offset)
            node.log.delete_before(offset)
            node.deletions.append(offset)
            self.say(f"[deletions] node {node.id}: before {offset}")

    def _compact(self) -> None:
        node = self._one([node for node in self._serving() if node.replica is not None])
        if node is not None and node.replica is not None and node.topic_id == self._topic_id:
            below = min(node.replica.high_watermark, node.log.flushed_offset)
            node.log.compact(below, self.now_ms, DELETE_RETENTION_MS, joins=self.random() < 0.7)
            self.say(f"[compaction] node {node.id} below {node.log.clean_until}: {sorted(node.log.records)}")
            self._check_all()

    def _reassign(self) -> None:
        numbers = list(self.nodes)
        if len(numbers) <= self.plan.replicas and self.random() < 0.7:
            return
        first = int(self.random() * len(numbers))
        target = tuple((numbers + numbers)[first : first + self.plan.replicas])
        self.authority.transaction([], [Put(REASSIGN, target)])
        self.say(f"[reassignments] to {target}")

    def _new_topic(self) -> None:
        if self.random() < 0.3:
            registered = [node for node in self._all if self.authority.get(live_key(node.id)) is not None and node.up]
            if len(registered) == len(self._all):
                self._make_topic()


def _said(answer: FetchAnswer) -> str:
    echo = f"(epoch {answer.leader_epoch}, at {answer.fetch_offset} behind epoch {answer.last_epoch})"
    if answer.error_code:
        return f"{answer.error_code.name} {echo}"
    if answer.diverging_end >= 0:
        return f"differs, epoch {answer.diverging_epoch} ends at {answer.diverging_end} {echo}"
    records = [record[:3] for batch in answer.records for record in batch.records]
    return f"{records}, high watermark {answer.high_watermark} {echo}"


def _same(registration: PartitionRegistration) -> Any:
    return registration
