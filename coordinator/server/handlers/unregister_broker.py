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
    return change_handler(node, _remove, UnregisterBrokerResponse, _TIMEOUT_MS)


async def _remove(node: Node, request: UnregisterBrokerRequest) -> UnregisterBrokerResponse:
    await node.administration.remove_node(request.broker_id, node.cluster_topics)
    return UnregisterBrokerResponse(ErrorCode.NONE)
