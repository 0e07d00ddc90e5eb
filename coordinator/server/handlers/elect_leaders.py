"""ElectLeaders (43): the preferred replicas lead again, or one leads that is not in sync where no other can."""

from __future__ import annotations

from itertools import groupby

from coordinator.server.call import Handler
from coordinator.server.dispatch import ErrorTexts
from coordinator.server.handlers.cluster_change import change_handler
from coordinator.server.node import Node
from protocol.errors import ErrorCode
from protocol.messages.reassignment import (
    PREFERRED_ELECTION,
    UNCLEAN_ELECTION,
    ElectedPartition,
    ElectedTopic,
    ElectLeadersRequest,
    ElectLeadersResponse,
)


def handler(node: Node) -> Handler:
    """Elects, and answers when the leaders are in the metadata."""
    return change_handler(node, _elect, lambda code, message: ElectLeadersResponse(code, (), message))


async def _elect(node: Node, request: ElectLeadersRequest) -> ElectLeadersResponse:
    partitions = None
    if request.topic_partitions is not None:
        partitions = [(topic.topic, index) for topic in request.topic_partitions for index in topic.partitions]
    if request.election_type == PREFERRED_ELECTION:
        outcomes = await node.administration.elect_preferred(partitions)
    elif request.election_type == UNCLEAN_ELECTION:
        outcomes = await node.administration.elect_unclean(partitions)
    else:
        return ElectLeadersResponse(
            ErrorCode.INVALID_REQUEST, (), f"there is no election of type {request.election_type}"
        )
    texts = ErrorTexts()
    topics = (
        ElectedTopic(
            name,
            tuple(ElectedPartition(told.partition[1], told.code, texts(told.message)) for told in entries),
        )
        for name, entries in groupby(outcomes, key=lambda outcome: outcome.partition[0])
    )
    return ElectLeadersResponse(ErrorCode.NONE, tuple(topics))
