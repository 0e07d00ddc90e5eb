"""Requests to one group or about one transactional id: each goes to the shard of what it names, whose core decides it."""

from __future__ import annotations

from collections.abc import Callable
from operator import attrgetter
from typing import Any, Protocol

from coordinator.group_coordinator import GroupCoordinator
from coordinator.runtime.effects import RequestContext
from coordinator.runtime.pending_replies import PendingReplies
from coordinator.runtime.shard import CoordinatorShard
from coordinator.server.dispatch import Call, Handler
from coordinator.transaction_coordinator import TransactionCoordinator
from protocol.messages import Request, Response


class Coordinator(Protocol):
    """The coordinator of groups, or that of transactions."""

    replies: PendingReplies
    """The requests to it that have no answer yet."""

    def shard(self, name: str, /) -> CoordinatorShard[Any] | None:
        """The shard of a group or a transactional id, or None when it is not there."""

    def without_shard(self, request: Request, name: str, /) -> Response:
        """The answer to a request whose shard is not there."""


def to_shard(groups: GroupCoordinator) -> Handler:
    """A handler that passes a request to the shard of the group that it names."""
    return _to_shard(groups, attrgetter("group_id"))


def to_transaction_shard(transactions: TransactionCoordinator) -> Handler:
    """A handler that passes a request to the shard of the transactional id that it names."""
    return _to_shard(transactions, attrgetter("transactional_id"))


def _to_shard(coordinator: Coordinator, name_of: Callable[[Request], str]) -> Handler:
    shard_of, replies = coordinator.shard, coordinator.replies

    def handle(call: Call) -> None:
        request = call.request
        name = name_of(request)
        shard = shard_of(name)
        if shard is None:
            call.answer(coordinator.without_shard(request, name))
            return
        token = replies.open(call)
        connection = call.connection
        shard.submit(request, RequestContext(token, call.client_id, connection.host, connection.number))
        if not call.open:
            return

        def abandon() -> None:
            if replies.forget(token):
                shard.abandon(request, token)

        call.on_abandon = abandon

    return handle
