"""DescribeTransactions (65): everything about transactional ids, as it is on disk."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import cast

from coordinator.server.dispatch import Call, Handler
from coordinator.server.handlers.shard_requests import ask_each
from coordinator.server.node import Node
from protocol.messages import Response
from protocol.messages.transactions import DescribeTransactionsRequest, DescribeTransactionsResponse


def handler(node: Node) -> Handler:
    """Describes each id once what it shows is on disk; one whose shard is not ready says so."""
    node_id = node.settings.node_id

    def combined(parts: list[Response]) -> Response:
        described = (
            replace(state, coordinator=node_id)
            for part in parts
            for state in cast("DescribeTransactionsResponse", part).transaction_states
        )
        return DescribeTransactionsResponse(tuple(described))

    def handle(call: Call) -> Iterator[None]:
        ids = cast("DescribeTransactionsRequest", call.request).transactional_ids
        return ask_each(node.transactions, call, ids, lambda name: DescribeTransactionsRequest((name,)), combined)

    return handle
