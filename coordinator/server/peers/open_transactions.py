"""OpenTransactions (1102): a coordinator of transactions on another node asks which are open in partitions of this one."""

from __future__ import annotations

from typing import Final, cast

from coordinator.metadata.catalog import Catalog
from coordinator.server.call import Call, Handler
from coordinator.server.node import Node
from coordinator.transactions.orders import FindOpen, MarkerPartition
from protocol.messages.transactions import OpenTransactionsRequest, OpenTransactionsResponse, SoughtTransaction

_UNKNOWN: Final = -1


def handler(node: Node) -> Handler:
    """Answers when it is certain which are open, or that it is not."""

    def handle(call: Call) -> None:
        node.tasks.start(call, _answer(node, call))

    return handle


async def _answer(node: Node, call: Call) -> None:
    sought = cast("OpenTransactionsRequest", call.request).transactions
    found: list[bool | None] = [None] * len(sought)
    if node.membership.valid():
        found = await node.transactions.open_here.look_for_all([_order(node.catalog, one) for one in sought])
    call.answer(OpenTransactionsResponse(tuple(_UNKNOWN if state is None else int(state) for state in found)))


def _order(catalog: Catalog, sought: SoughtTransaction) -> FindOpen:
    """A topic of which only the id is known here is not there, or not yet: its name is nobody's."""
    places = tuple(
        MarkerPartition("" if (known := catalog.with_id(topic.topic_id)) is None else known.name, topic.topic_id, index)
        for topic in sought.topics
        for index in topic.partitions
    )
    return FindOpen("", sought.producer_id, sought.producer_epoch, places)
