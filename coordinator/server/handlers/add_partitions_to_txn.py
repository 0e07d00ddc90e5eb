"""AddPartitionsToTxn (24): the leader of partitions makes them part of a transaction, or asks whether they are."""

from __future__ import annotations

from typing import cast

from coordinator.server.call import Handler
from coordinator.server.handlers.shard_requests import to_transaction_shard
from coordinator.server.node import Node
from protocol.messages.transactions import AddPartitionsToTxnRequest


def handler(node: Node) -> Handler:
    """``coordinator/transactions/members.py`` decides it."""
    if not node.catalog.cluster:
        return to_transaction_shard(node.transactions)
    return lambda call: node.transactions.add_here(cast("AddPartitionsToTxnRequest", call.request), call.answer)
