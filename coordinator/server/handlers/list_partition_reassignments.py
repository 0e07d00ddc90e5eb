"""ListPartitionReassignments (46): which partitions are being reassigned, as far as this node knows."""

from __future__ import annotations

from itertools import groupby
from typing import cast

from coordinator.server.call import Call, Handler
from coordinator.server.node import Node
from protocol.errors import ErrorCode
from protocol.messages.reassignment import (
    ListPartitionReassignmentsRequest,
    ListPartitionReassignmentsResponse,
    OngoingPartitionReassignment,
    OngoingTopicReassignment,
)


def handler(node: Node) -> Handler:
    """Answers at once."""

    def handle(call: Call) -> None:
        request = cast("ListPartitionReassignmentsRequest", call.request)
        partitions = None
        if request.topics is not None:
            partitions = [(topic.name, index) for topic in request.topics for index in topic.partition_indexes]
        found = groupby(node.administration.reassignments(partitions), key=lambda entry: entry.partition[0])
        topics = (
            OngoingTopicReassignment(
                name,
                tuple(
                    OngoingPartitionReassignment(entry.partition[1], entry.replicas, entry.adding, entry.removing)
                    for entry in entries
                ),
            )
            for name, entries in found
        )
        call.answer(ListPartitionReassignmentsResponse(ErrorCode.NONE, tuple(topics)))

    return handle
