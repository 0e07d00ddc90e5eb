"""DescribeTransactions (65): everything about transactional ids, as it is on disk."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import replace
from typing import Final, cast

from coordinator.server.call import Call, Handler
from coordinator.server.handlers.shard_requests import ask_each
from coordinator.server.node import Node
from protocol.messages import Response
from protocol.messages.transactions import (
    DescribedTransaction,
    DescribeTransactionsRequest,
    DescribeTransactionsResponse,
)

MAX_PLACES: Final = 300_000
"""Partitions and members in one answer: about 20 ms. One transaction may have 10,000 members in 10,000 partitions each."""

_MEMBER: Final = 8
"""What a member or one of its topics takes beside its partitions, counted in partitions."""


def handler(node: Node) -> Handler:
    """Describes each id once what it shows is on disk; one whose shard is not ready says so."""
    node_id = node.settings.node_id

    def combined(parts: list[Response]) -> Response:
        described = (
            replace(state, coordinator=node_id)
            for part in parts
            for state in cast("DescribeTransactionsResponse", part).transaction_states
        )
        return DescribeTransactionsResponse(tuple(bounded(described)))

    def handle(call: Call) -> Iterator[None]:
        ids = cast("DescribeTransactionsRequest", call.request).transactional_ids
        return ask_each(node.transactions, call, ids, lambda name: DescribeTransactionsRequest((name,)), combined)

    return handle


def bounded(described: Iterable[DescribedTransaction], places: int = MAX_PLACES) -> Iterator[DescribedTransaction]:
    """The same with as many members as fit into one answer; each transaction says how many of its own are left out."""
    for state in described:
        shown = 0
        for member in state.members:
            takes = _MEMBER + sum(_MEMBER + len(topic.partitions) for topic in member.topics)
            if takes > places:
                break
            places -= takes
            shown += 1
        left_out = len(state.members) - shown
        if not left_out:
            yield state
            continue
        text = (
            f"{left_out} of {len(state.members)} members are left out: the answer has room for {MAX_PLACES} partitions"
        )
        yield replace(state, members=state.members[:shown], error_message=text)
