"""AbortTransaction (1002): an administrator aborts the open transaction of a transactional id."""

from __future__ import annotations

from coordinator.server.call import Handler
from coordinator.server.handlers.shard_requests import to_transaction_shard
from coordinator.server.node import Node


def handler(node: Node) -> Handler:
    """``coordinator/transactions/ending.py`` decides it."""
    return to_transaction_shard(node.transactions)
