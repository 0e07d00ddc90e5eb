"""ListTransactions (66): the transactional ids of this node.

While the log of a coordinator is damaged, the ids of the others are listed beside the error: an administrator needs them to
find transactions that no coordinator knows.
"""

from __future__ import annotations

import asyncio
from collections.abc import Generator
from typing import Final, TypeVar, cast

from coordinator.runtime.effects import RequestContext
from coordinator.runtime.shard import ShardState
from coordinator.server.call import NO_ERRORS, Call, Handler
from coordinator.server.handlers.long_lists import merged, packed
from coordinator.server.node import Node
from coordinator.transactions.describe import STATES
from protocol.codec import pack
from protocol.errors import ErrorCode
from protocol.messages import Request, Response
from protocol.messages.transactions import ListTransactionsRequest, ListTransactionsResponse

_FOUR_FIELDS: Final = b"\x94"
"""How a ``ListTransactionsResponse`` begins."""

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
    shards = [shard for shard in node.transactions.shards() if shard.state is not ShardState.FAILED]
    loading = next((shard for shard in shards if shard.state is ShardState.LOADING), None)
    listings = []
    for shard in shards if loading is None else [loading]:  # one that refuses spares the others their lists
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
    code = ErrorCode.NONE if damage is None else ErrorCode.COORDINATOR_NOT_AVAILABLE
    body = await _in_steps(node, call, packed(names, listed, damage or ""))
    call.answer_packed(_FOUR_FIELDS + pack(code.value) + pack(unknown), body, {code: 1} if code else NO_ERRORS)


async def _in_steps(node: Node, call: Call, steps: Generator[None, None, Result]) -> Result:
    while True:
        try:
            next(steps)
        except StopIteration as end:
            return cast("Result", end.value)
        await node.tasks.next_step(call)
