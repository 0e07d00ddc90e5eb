"""UnregisterBroker (64): a node that will not come back is forgotten, and what is left to do for it with it."""

from __future__ import annotations

from typing import Final

from coordinator.server.call import Handler
from coordinator.server.handlers.cluster_change import change_handler
from coordinator.server.node import Node
from protocol.errors import ErrorCode
from protocol.messages.cluster import UnregisterBrokerRequest, UnregisterBrokerResponse

_TIMEOUT_MS: Final = 30_000


def handler(node: Node) -> Handler:
    """Forgets it, and answers then."""
    return change_handler(node, _forget, UnregisterBrokerResponse, _TIMEOUT_MS)


async def _forget(node: Node, request: UnregisterBrokerRequest) -> UnregisterBrokerResponse:
    broker_id = request.broker_id
    await node.administration.forget_node(broker_id)
    if node.cluster_topics is not None:
        deleted = [topic_id for topic_id, _, _ in node.catalog.deletions_of(broker_id)]
        await node.cluster_topics.deletion_done(deleted, broker_id)  # it cannot remove its logs of them
    return UnregisterBrokerResponse(ErrorCode.NONE)
