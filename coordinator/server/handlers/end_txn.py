"""EndTxn (26): a transaction commits or aborts. Answered when the decision is on disk."""

from __future__ import annotations

from coordinator.server.dispatch import Handler
from coordinator.server.handlers.shard_requests import to_transaction_shard
from coordinator.server.node import Node


def handler(node: Node) -> Handler:
    """``coordinator/transactions/ending.py`` decides it."""
    return to_transaction_shard(node.transactions)
