"""AddPartitionsToTxn (24): the leader of partitions makes them part of a transaction, or asks whether they are."""

from __future__ import annotations

from coordinator.server.dispatch import Handler
from coordinator.server.handlers.shard_requests import to_transaction_shard
from coordinator.server.node import Node


def handler(node: Node) -> Handler:
    """``coordinator/transactions/members.py`` decides it."""
    return to_transaction_shard(node.transactions)
