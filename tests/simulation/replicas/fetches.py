"""Followers fetch from their leader, over a network that loses and doubles messages and delivers them in any order."""

from __future__ import annotations

from typing import Final

from coordinator.log.leader_epochs import NotAContinuationError
from coordinator.replication.fetch import FetchAnswer, FetchPartition
from coordinator.replication.follower import Follower
from coordinator.replication.leader import Leader
from coordinator.replication.log import AppendAsFollower, ResetTo, TruncateTo
from tests.simulation.replicas.appends import Appends
from tests.simulation.replicas.cluster import Cluster
from tests.simulation.replicas.facts import violated
from tests.simulation.replicas.node import Node
from tests.simulation.replicas.reconciler import Reconciler

MAX_MESSAGES: Final = 10


class Fetches:
    """Fetch requests and answers under way."""

    def __init__(self, cluster: Cluster, reconciler: Reconciler, appends: Appends) -> None:
        self._cluster = cluster
        self._reconciler = reconciler
        self._appends = appends
        self.messages: list[tuple[int, int, FetchPartition | FetchAnswer, int]] = []
        """Receiver, topic id, what, and session of a fetch."""

    def fetch(self) -> None:
        """Some follower asks its leader."""
        node = self._cluster.one_of([node for node in self._cluster.serving() if isinstance(node.replica, Follower)])
        if node is not None and len(self.messages) < MAX_MESSAGES:
            self.fetch_by(node)

    def fetch_by(self, node: Node) -> None:
        """A follower asks its leader."""
        replica, known = node.replica, node.registration
        if not isinstance(replica, Follower) or known is None or known.leader is None or node.topic_id is None:
            return
        request = replica.fetch(self._cluster.now_ms)
        if request is not None:
            if self._cluster.random() < 0.1:
                node.session += 1
            self.messages.append((known.leader.node, node.topic_id, request, node.session))
            self._cluster.say(f"node {node.id} asks {known.leader.node}: {tuple(request[1:])}")

    def deliver(self) -> None:
        """Some message arrives, is lost, or is doubled."""
        messages = self.messages
        if not messages:
            return
        place = int(self._cluster.random() * len(messages))
        message = messages[place]
        if not self._cluster.calm and self._cluster.random() < self._cluster.plan.loss:
            if "doubled" in self._cluster.on and self._cluster.random() < 0.5:
                messages.append(message)
            elif "lost" in self._cluster.on:
                messages[place] = messages[-1]
                messages.pop()
                return
        messages[place] = messages[-1]
        messages.pop()
        number, topic_id, content, session = message
        node = self._cluster.nodes[number]
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
        answer = replica.fetch(request, node.live, self._cluster.now_ms)
        self._reconciler.advanced(node, replica, before)
        if answer.error_code or answer.diverging_end >= 0:
            self._send_answer(node, request, answer)
            return
        assert node.topic_id is not None
        session.arm(node.topic_id, request)
        if self._cluster.random() < 0.7:
            self._serve_to(node, replica, request)

    def serve(self) -> None:
        """Some leader answers fetches that it holds."""
        found = self._cluster.a_leader()
        if found is not None:
            self.serve_by(found[0])

    def serve_by(self, node: Node) -> None:
        """A leader answers the fetches that it holds."""
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
        records = node.log.read(request.fetch_offset, replica.readable_end, 1 + int(self._cluster.random() * 4))
        if not records and not self._cluster.calm and self._cluster.random() < 0.6:
            return  # it is held
        end = records[-1].next_offset if records else request.fetch_offset
        epochs = node.log.epochs.within(request.fetch_offset, end)
        node.sessions.disarm(request.follower, node.topic_id)
        self._send_answer(node, request, answer._replace(records=records, epochs=epochs))

    def _send_answer(self, node: Node, request: FetchPartition, answer: FetchAnswer) -> None:
        assert node.topic_id is not None
        self._cluster.say(f"node {node.id} answers {request.follower.node}: {_said(answer)}")
        self.messages.append((request.follower.node, node.topic_id, answer, 0))

    def _take_answer(self, node: Node, answer: FetchAnswer) -> None:
        replica, log = node.replica, node.log
        if not isinstance(replica, Follower):
            return
        current = replica.is_current(answer)
        order = replica.answered(answer, self._cluster.now_ms)
        if isinstance(order, AppendAsFollower):
            before = log.end_offset
            try:
                log.append_as_follower(order.records, order.epochs)
            except NotAContinuationError as error:
                violated("logs_have_no_gaps", f"node {node.id} refuses what its leader sent: {error}")
            if not self._cluster.flush_at_acknowledgement:
                log.flush()
            if node.topic_id == self._cluster.topic_id:
                self._cluster.facts.appended(log, before)
        elif isinstance(order, TruncateTo | ResetTo):
            self._cluster.say(f"node {node.id}: {order}")
            if isinstance(order, TruncateTo):
                log.truncate_to(order.offset)
            else:
                log.reset_to(order.offset)
            node.note_hints(replica)
            if node.topic_id == self._cluster.topic_id:
                self._cluster.check_all()
            return
        if current:
            self._done(node, replica, answer)

    def _done(self, node: Node, replica: Follower, answer: FetchAnswer) -> None:
        deletion = replica.done(answer)
        if node.topic_id == self._cluster.topic_id:
            self._cluster.facts.follower_advanced(node, replica.high_watermark)
        if deletion is not None:
            self._appends.write_log(node)
            node.log.flush()
            node.log.delete_before(deletion.offset)
        if self._cluster.random() < 0.1:
            node.note_hints(replica)


def _said(answer: FetchAnswer) -> str:
    echo = f"(epoch {answer.leader_epoch}, at {answer.fetch_offset} behind epoch {answer.last_epoch})"
    if answer.error_code:
        return f"{answer.error_code.name} {echo}"
    if answer.diverging_end >= 0:
        return f"differs, epoch {answer.diverging_epoch} ends at {answer.diverging_end} {echo}"
    records = [record[:3] for batch in answer.records for record in batch.records]
    return f"{records}, high watermark {answer.high_watermark} {echo}"
