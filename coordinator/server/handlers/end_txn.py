"""EndTxn (26): a transaction commits or aborts. Answered when the decision is on disk.

A commit that names writes which its producer has no answer to is held until they are on disk, or decided ahead and written
then, see ``coordinator/runtime/held_commits.py``.
"""

from __future__ import annotations

from functools import partial
from typing import cast

from coordinator.runtime.shard import ShardState
from coordinator.server.call import Call, Handler
from coordinator.server.handlers.shard_requests import to_transaction_shard, to_transaction_shard_ahead
from coordinator.server.node import Node
from coordinator.transaction_coordinator import TransactionCoordinator
from protocol.errors import ErrorCode
from protocol.messages.transactions import EndTxnRequest, EndTxnResponse


def handler(node: Node) -> Handler:
    """``coordinator/transactions/ending.py`` decides it."""
    transactions, submit = node.transactions, to_transaction_shard(node.transactions)
    # In a cluster others may wait for these writes' followers as long as a node's session: a shard must not wait with them.
    submit_ahead = None if node.catalog.cluster else to_transaction_shard_ahead(node.transactions)
    commits = transactions.held_commits

    def handle(call: Call) -> None:
        request = cast("EndTxnRequest", call.request)

        def go_on() -> None:
            call.on_abandon = None
            submit(call)

        held = commits.enter(
            request,
            partial(_is_current, transactions, request),
            go_on,
            partial(_refuse, call),
            None if submit_ahead is None else partial(submit_ahead, call),
        )
        if held is not None:
            call.on_abandon = held.drop

    return handle


def _refuse(call: Call, why: str) -> None:
    text = f"the commit came before its writes were stored, and {why}: wait for them, then commit again"
    call.answer(EndTxnResponse(ErrorCode.CONCURRENT_TRANSACTIONS, error_message=text))


def _is_current(transactions: TransactionCoordinator, request: EndTxnRequest) -> bool:
    """Whether the transaction is the one that its id has now; not so either when the shard cannot say, and refuses it."""
    name = request.transactional_id
    shard = transactions.shard(name)
    if shard is None or shard.state is not ShardState.ACTIVE:
        return False
    if shard.is_unfinished(name):
        return True
    known = shard.core.transactions.known(name)
    return known is not None and known.identity.identity == (request.producer_id, request.producer_epoch)
