"""The admin's calls about the nodes of a cluster, and about where partitions are and who leads them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from typing import TypeVar

from client.admin.arguments import checked_mapping, checked_partition
from client.admin.calls import AdminCalls
from client.admin.failures import raise_failures
from client.admin.replica_placement import Placement, with_replication_factor, without_node
from client.admin.topic_configs import described_logs
from client.errors import (
    BrokerIdNotRegisteredError,
    CohortError,
    ElectionNotNeededError,
    InvalidReplicaAssignmentError,
    error_for,
)
from client.transport.deadline import Deadline
from client.transport.retry import retrying
from client.types.descriptions import (
    ClusterDescription,
    NodeDescription,
    ReassignmentDescription,
    ReplicaDescription,
)
from protocol.errors import ErrorCode
from protocol.messages.cluster import (
    DescribeClusterBroker,
    DescribeClusterRequest,
    DescribeClusterResponse,
    UnregisterBrokerRequest,
    UnregisterBrokerResponse,
)
from protocol.messages.configs import DescribeLogDirsRequest
from protocol.messages.reassignment import (
    PREFERRED_ELECTION,
    UNCLEAN_ELECTION,
    AlterPartitionReassignmentsRequest,
    AlterPartitionReassignmentsResponse,
    ElectLeadersRequest,
    ElectLeadersResponse,
    ElectTopic,
    ListPartitionReassignmentsRequest,
    ListPartitionReassignmentsResponse,
    ListReassignmentsTopic,
    ReassignablePartition,
    ReassignableTopic,
)
from protocol.subscription import TopicPartition

T = TypeVar("T")


class ClusterCalls(AdminCalls):
    """Base of ``Admin``: nodes, replicas and leaders."""

    async def describe_cluster(self, *, timeout_ms: int | None = None) -> ClusterDescription:
        """The cluster's id, its controller and its nodes, also those that are registered and not alive."""
        request, deadline = DescribeClusterRequest(include_fenced_brokers=True), self._deadline(timeout_ms)
        response = await self._cluster.call(request, DescribeClusterResponse, deadline=deadline)
        if response.error_code != ErrorCode.NONE:
            raise error_for(response.error_code, response.error_message)
        nodes = tuple(map(_node, sorted(response.brokers, key=lambda broker: broker.broker_id)))
        return ClusterDescription(
            response.cluster_id,
            response.controller_id,
            tuple(node for node in nodes if node.alive),
            tuple(node for node in nodes if not node.alive),
            response.metadata_store,
        )

    async def remove_node(self, node_id: int, *, timeout_ms: int | None = None) -> None:
        """Forgets a node that does not live and will not come back.

        Raises ``BrokerIdNotRegisteredError`` for an id that no node has, and ``InvalidRequestError`` for one that lives or
        still has replicas: move those first, see ``drain_node``.
        """
        request, deadline = UnregisterBrokerRequest(node_id), self._deadline(timeout_ms)
        attempts = 0

        async def once() -> None:
            nonlocal attempts
            attempts += 1
            response = await self._cluster.call(request, UnregisterBrokerResponse, deadline=deadline)
            if response.error_code == ErrorCode.BROKER_ID_NOT_REGISTERED and attempts > 1:
                return  # an attempt before was in time after all: it found the node, or it would have said this
            if response.error_code != ErrorCode.NONE:
                raise error_for(response.error_code, response.error_message)

        await self._retried(once, deadline, f"removing node {node_id}")

    async def reassign_partitions(
        self, replicas: Mapping[TopicPartition, Sequence[int] | None], *, timeout_ms: int | None = None
    ) -> None:
        """Moves partitions to other nodes: the ids of those that shall have them, the preferred leader first (KIP-455).

        ``None`` cancels what is under way for a partition. Returns when it is noted; ``list_reassignments`` tells what is
        still to be copied. Raises ``InvalidReplicaAssignmentError`` for nodes that are unknown or named twice,
        ``NoReassignmentInProgressError`` for a cancellation of nothing, ``UnknownTopicOrPartitionError``.
        """
        deadline = self._deadline(timeout_ms)
        example = 'partitions with the ids of nodes, such as {TopicPartition("orders", 0): [1, 2, 3]}'
        by_topic: dict[str, list[ReassignablePartition]] = {}
        for given, nodes in checked_mapping("reassign_partitions", replicas, example).items():
            partition = checked_partition("reassign_partitions", given)
            wanted = ReassignablePartition(partition.partition, None if nodes is None else _node_ids(partition, nodes))
            by_topic.setdefault(partition.topic, []).append(wanted)
        topics = tuple(ReassignableTopic(topic, tuple(partitions)) for topic, partitions in by_topic.items())
        request = AlterPartitionReassignmentsRequest(topics, deadline.remaining_ms())
        if topics:
            response = await self._cluster.call(request, AlterPartitionReassignmentsResponse, deadline=deadline)
            _raise_refused(
                response.error_code,
                response.error_message,
                (
                    (TopicPartition(topic.name, each.partition_index), each.error_code, each.error_message)
                    for topic in response.responses
                    for each in topic.partitions
                ),
            )

    async def list_reassignments(
        self, *partitions: TopicPartition, timeout_ms: int | None = None
    ) -> dict[TopicPartition, ReassignmentDescription]:
        """The partitions that move at the moment: of those named, or of all; sorted."""
        deadline = self._deadline(timeout_ms)
        topics = None
        if partitions:
            named = _by_topic(checked_partition("list_reassignments", given) for given in partitions)
            topics = tuple(ListReassignmentsTopic(topic, tuple(indexes)) for topic, indexes in named.items())
        request = ListPartitionReassignmentsRequest(topics, deadline.remaining_ms())
        response = await self._cluster.call(request, ListPartitionReassignmentsResponse, deadline=deadline)
        _raise_refused(response.error_code, response.error_message, ())
        moving = {
            TopicPartition(topic.name, each.partition_index): ReassignmentDescription(
                each.replicas, each.adding_replicas, each.removing_replicas
            )
            for topic in response.topics
            for each in topic.partitions
        }
        return dict(sorted(moving.items()))

    async def set_replication_factor(
        self, topic: str, replication_factor: int, *, timeout_ms: int | None = None
    ) -> dict[TopicPartition, tuple[int, ...]]:
        """Keeps a topic on so many nodes from now on; returns where its partitions go, of those that change.

        What is there stays, new copies go to other racks and to the nodes with the fewest replicas. Raises
        ``InvalidReplicationFactorError`` when there are not so many nodes, otherwise as ``reassign_partitions``.
        """
        deadline = self._deadline(timeout_ms)

        def plan(placement: Placement, nodes: Mapping[int, str | None], load: Counter[int]) -> Placement:
            own = {partition: replicas for partition, replicas in placement.items() if partition.topic == topic}
            if not own:
                raise error_for(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, f"topic {topic!r} does not exist")
            return with_replication_factor(own, replication_factor, nodes, load)

        return await self._replan(plan, deadline)

    async def drain_node(self, node_id: int, *, timeout_ms: int | None = None) -> dict[TopicPartition, tuple[int, ...]]:
        """Moves all that a node has to other nodes, so that it can be removed; returns where its partitions go.

        A node that does not live may be drained too: what it has is copied from the leaders, and what nobody else has waits
        until it comes back. Raises ``InvalidReplicationFactorError`` when the others are too few for a partition, naming it,
        and ``BrokerIdNotRegisteredError`` for an id that no node has.
        """
        deadline = self._deadline(timeout_ms)
        cluster = await self.describe_cluster(timeout_ms=deadline.remaining_ms())
        known = sorted(node.node_id for node in (*cluster.nodes, *cluster.absent_nodes))
        if node_id not in known:
            raise BrokerIdNotRegisteredError(f"there is no node {node_id}; the nodes are {known}")
        return await self._replan(
            lambda placement, nodes, load: without_node(placement, node_id, nodes, load), deadline
        )

    async def elect_leaders(
        self,
        partitions: Iterable[TopicPartition] | None = None,
        *,
        unclean: bool = False,
        timeout_ms: int | None = None,
    ) -> list[TopicPartition]:
        """Gives partitions (None: all) their preferred leader, which is the first of their replicas (KIP-460).

        ``unclean`` elects a live replica that is *not* in sync where no other is alive: acknowledged records that it lacks
        are lost for good. Returns the partitions that have got another leader, sorted. Raises
        ``PreferredLeaderNotAvailableError`` and ``EligibleLeadersNotAvailableError``.
        """
        deadline = self._deadline(timeout_ms)
        named = None
        if partitions is not None:
            by_topic = _by_topic(checked_partition("elect_leaders", given) for given in partitions)
            named = tuple(ElectTopic(topic, tuple(indexes)) for topic, indexes in by_topic.items())
        kind = UNCLEAN_ELECTION if unclean else PREFERRED_ELECTION
        request = ElectLeadersRequest(named, kind, deadline.remaining_ms())
        response = await self._cluster.call(request, ElectLeadersResponse, deadline=deadline)
        results = {
            TopicPartition(topic.topic, each.partition_id): each
            for topic in response.replica_election_results
            for each in topic.partition_result
        }
        needed = {
            partition: each for partition, each in results.items() if each.error_code != ElectionNotNeededError.code
        }
        _raise_refused(
            response.error_code,
            response.error_message,
            ((partition, each.error_code, each.error_message) for partition, each in needed.items()),
        )
        return sorted(needed)

    async def describe_replicas(
        self, *topics: str, timeout_ms: int | None = None
    ) -> dict[TopicPartition, list[ReplicaDescription]]:
        """Each copy of the partitions of topics on a node that lives: how far it is behind its leader."""
        found = await described_logs(self._cluster, DescribeLogDirsRequest(topics), self._deadline(timeout_ms))
        described: dict[TopicPartition, list[ReplicaDescription]] = {}
        for partition, logs in found.items():
            leader = logs.get(self._cluster.topology.leader_id(partition))
            end = -1 if leader is None else leader.log_end_offset
            described[partition] = [
                ReplicaDescription(
                    node_id,
                    log.log_end_offset,
                    max(0, end - log.log_end_offset) if end >= 0 and log.log_end_offset >= 0 else -1,
                    log.size,
                    log.error_message or log.fault,
                )
                for node_id, log in sorted(logs.items())
            ]
        return described

    async def _replan(
        self, plan: Callable[[Placement, Mapping[int, str | None], Counter[int]], Placement], deadline: Deadline
    ) -> dict[TopicPartition, tuple[int, ...]]:
        """Carries out what ``plan`` makes of where all partitions are, or are on their way to."""
        metadata = await self._metadata(None, deadline)
        placement: dict[TopicPartition, Sequence[int]] = {
            TopicPartition(topic.name, each.partition_index): each.replica_nodes
            for topic in metadata.topics
            for each in topic.partitions
        }
        moving = await self.list_reassignments(timeout_ms=deadline.remaining_ms())
        for partition, each in moving.items():
            placement[partition] = tuple(node for node in each.replicas if node not in each.removing)
        nodes = {broker.node_id: broker.rack for broker in metadata.brokers}
        load = Counter(node for replicas in placement.values() for node in replicas)
        wanted = {partition: tuple(replicas) for partition, replicas in plan(placement, nodes, load).items()}
        await self.reassign_partitions(wanted, timeout_ms=deadline.remaining_ms())
        return wanted

    async def _retried(self, once: Callable[[], Awaitable[T]], deadline: Deadline, what: str) -> T:
        return await retrying(once, deadline=deadline, backoff=self._cluster.backoff, what=what)


def _node(broker: DescribeClusterBroker) -> NodeDescription:
    alive = not broker.is_fenced
    room = broker.room if broker.room >= 0 else None
    return NodeDescription(broker.broker_id, broker.host, broker.port, broker.rack, alive, broker.is_draining, room)


def _by_topic(partitions: Iterable[TopicPartition]) -> dict[str, list[int]]:
    by_topic: dict[str, list[int]] = {}
    for partition in partitions:
        by_topic.setdefault(partition.topic, []).append(partition.partition)
    return by_topic


def _node_ids(partition: TopicPartition, nodes: object) -> tuple[int, ...]:
    name = f"{partition.topic}-{partition.partition}"
    ids = tuple(nodes) if isinstance(nodes, list | tuple) else (None,)
    if not all(isinstance(node, int) and not isinstance(node, bool) for node in ids):
        raise TypeError(f"the replicas of {name} are {nodes!r}; they must be ids of nodes, such as [1, 2, 3]")
    if not ids:
        raise InvalidReplicaAssignmentError(f"{name} would have no replica")
    return ids


def _raise_refused(code: int, message: str, partitions: Iterable[tuple[TopicPartition, int, str]]) -> None:
    if code != ErrorCode.NONE:
        raise error_for(code, message)
    failures: dict[TopicPartition, CohortError] = {}
    for partition, each, said in partitions:
        if each != ErrorCode.NONE:
            name = f"{partition.topic}-{partition.partition}"
            failures[partition] = error_for(each, said if said.startswith(name) else f"{name}: {said}")
    raise_failures(failures)
