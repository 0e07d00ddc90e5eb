"""ListTransactions (66): the transactional ids of this node."""

from __future__ import annotations

import asyncio
from collections.abc import Generator
from typing import Final, TypeVar, cast

from coordinator.runtime.effects import RequestContext
from coordinator.server.dispatch import Call, Handler
from coordinator.server.handlers.long_lists import merged, packed
from coordinator.server.node import Node
from coordinator.transactions.describe import STATES
from protocol.codec import pack
from protocol.errors import ErrorCode
from protocol.messages import Request, Response
from protocol.messages.transactions import ListTransactionsRequest, ListTransactionsResponse

_BEGIN: Final = b"\x94" + pack(ErrorCode.NONE.value)
"""How a ``ListTransactionsResponse`` begins: four fields, and the first of them."""

Result = TypeVar("Result")


def handler(node: Node) -> Handler:
    """Asks every shard, and answers once what they show is on disk."""

    def handle(call: Call) -> None:
        node.tasks.start(call, _list(node, call))

    return handle


class _Listing:
    """Asks one shard."""

    def __init__(self, request: Request) -> None:
        self.request = request
        self.listed: asyncio.Future[ListTransactionsResponse] = asyncio.get_running_loop().create_future()

    def answer(self, response: Response) -> None:
        """See ``Asker``."""
        if not self.listed.done():
            self.listed.set_result(cast("ListTransactionsResponse", response))


async def _list(node: Node, call: Call) -> None:
    request = cast("ListTransactionsRequest", call.request)
    damage = node.transactions.damage()
    if damage is not None:
        call.answer(ListTransactionsResponse(ErrorCode.COORDINATOR_NOT_AVAILABLE, error_message=damage))
        return
    listings = []
    for shard in node.transactions.shards():
        listing = _Listing(request)
        listings.append(listing)
        shard.submit(request, RequestContext(node.transactions.replies.open(listing), call.client_id, ""))
        await node.tasks.next_step(call)
    responses = [await listing.listed for listing in listings]
    failed = next((response for response in responses if response.error_code != ErrorCode.NONE), None)
    if failed is not None:
        call.answer(failed)
        return
    listed = {entry.transactional_id: entry for response in responses for entry in response.transaction_states}
    in_order = [[entry.transactional_id for entry in response.transaction_states] for response in responses]
    names = await _in_steps(node, call, merged(in_order))
    unknown = tuple(name for name in request.state_filters if name not in STATES)
    call.answer_packed(_BEGIN + pack(unknown), await _in_steps(node, call, packed(names, listed)))


async def _in_steps(node: Node, call: Call, steps: Generator[None, None, Result]) -> Result:
    while True:
        try:
            next(steps)
        except StopIteration as end:
            return cast("Result", end.value)
        await node.tasks.next_step(call)
