"""AlterPartitionReassignments (45): partitions get other replicas, or stay where they are after all."""

from __future__ import annotations

from collections import Counter

from coordinator.server.call import Handler
from coordinator.server.dispatch import ErrorTexts
from coordinator.server.handlers.cluster_change import change_handler
from coordinator.server.node import Node
from protocol.errors import ErrorCode
from protocol.messages.reassignment import (
    AlterPartitionReassignmentsRequest,
    AlterPartitionReassignmentsResponse,
    ReassignedPartition,
    ReassignedTopic,
)


def handler(node: Node) -> Handler:
    """Notes what is to be reassigned, and answers then: the controller carries it out."""
    return change_handler(node, _alter, lambda code, message: AlterPartitionReassignmentsResponse(code, (), message))


async def _alter(node: Node, request: AlterPartitionReassignmentsRequest) -> AlterPartitionReassignmentsResponse:
    wanted = [
        ((topic.name, entry.partition_index), entry.replicas) for topic in request.topics for entry in topic.partitions
    ]
    (twice, times), *_ = Counter(partition for partition, _ in wanted).most_common(1) or [(("", 0), 0)]
    if times > 1:
        return AlterPartitionReassignmentsResponse(
            ErrorCode.INVALID_REQUEST, (), f"partition {twice[1]} of topic {twice[0][:60]!r} is named {times} times"
        )
    outcomes = iter(
        await node.administration.reassign(
            wanted, may_change_replication_factor=request.allow_replication_factor_change
        )
    )
    texts = ErrorTexts()
    answers = []
    for topic in request.topics:
        told = [next(outcomes) for _ in topic.partitions]
        entries = (ReassignedPartition(outcome.partition[1], outcome.code, texts(outcome.message)) for outcome in told)
        answers.append(ReassignedTopic(topic.name, tuple(entries)))
    return AlterPartitionReassignmentsResponse(ErrorCode.NONE, tuple(answers))
