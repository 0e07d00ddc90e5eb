"""JoinTransaction (1000): a producer joins the transaction of a version, or opens it."""

from __future__ import annotations

from coordinator.server.call import Handler
from coordinator.server.handlers.init_producer_id import with_id_at_hand
from coordinator.server.handlers.shard_requests import to_transaction_shard
from coordinator.server.node import Node


def handler(node: Node) -> Handler:
    """``coordinator/transactions/members.py`` decides it, with a producer id for a member that is new."""
    return with_id_at_hand(node, to_transaction_shard(node.transactions))
