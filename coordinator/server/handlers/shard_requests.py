"""Requests about groups and transactional ids: each goes to the shard of what it names, whose core decides it.

Of one that names several, each shard gets a request of its own, and the client one answer of all answers.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from operator import attrgetter
from typing import Any, Protocol, TypeVar

from coordinator.group_coordinator import GroupCoordinator
from coordinator.runtime.effects import ReplyToken, RequestContext
from coordinator.runtime.pending_replies import Asker, PendingReplies
from coordinator.runtime.shard import CoordinatorShard
from coordinator.server.call import Call, Handler
from coordinator.server.dispatch import STEP
from coordinator.transaction_coordinator import TransactionCoordinator
from protocol.messages import Request, Response

Told = TypeVar("Told")


class Coordinator(Protocol):
    """The coordinator of groups, or that of transactions."""

    replies: PendingReplies
    """The requests to it that have no answer yet."""

    def shard(self, name: str, /) -> CoordinatorShard[Any] | None:
        """The shard of a group or a transactional id, or None when it is not there."""

    def without_shard(self, request: Request, name: str, /) -> Response:
        """The answer to a request whose shard is not there."""


def to_group_shard(groups: GroupCoordinator) -> Handler:
    """A handler that passes a request to the shard of the group that it names."""
    return _to_shard(groups, attrgetter("group_id"))


def to_transaction_shard(transactions: TransactionCoordinator) -> Handler:
    """A handler that passes a request to the shard of the transactional id that it names."""
    return _to_shard(transactions, attrgetter("transactional_id"))


def to_transaction_shard_ahead(transactions: TransactionCoordinator) -> Callable[[Call], Callable[[str], None] | None]:
    """Passes a request on before what it depends on is on disk, if its shard is at rest: see ``submit_ahead`` there."""

    def handle(call: Call) -> Callable[[str], None] | None:
        shard = transactions.shard(call.request.transactional_id)  # type: ignore[attr-defined]
        if shard is None or not shard.at_rest:
            return None
        return _submit(call, shard, transactions.replies, shard.submit_ahead)

    return handle


def _to_shard(coordinator: Coordinator, name_of: Callable[[Request], str]) -> Handler:
    shard_of, replies = coordinator.shard, coordinator.replies

    def handle(call: Call) -> None:
        name = name_of(call.request)
        shard = shard_of(name)
        if shard is None:
            call.answer(coordinator.without_shard(call.request, name))
        else:
            _submit(call, shard, replies, shard.submit)

    return handle


def _submit(
    call: Call, shard: CoordinatorShard[Any], replies: PendingReplies, submit: Callable[[Request, RequestContext], Told]
) -> Told:
    request, connection = call.request, call.connection
    token = replies.open(call)
    fields = token, call.client_id, connection.host, connection.number, connection.software, call.of_kafka
    told = submit(
        request, tuple.__new__(RequestContext, fields)
    )  # as RequestContext(*fields), without a call in Python
    if call.open:
        call.on_abandon = partial(_abandon, replies, shard, request, token)
    return told


def _abandon(replies: PendingReplies, shard: CoordinatorShard[Any], request: Request, token: ReplyToken) -> None:
    if replies.forget(token):
        shard.abandon(request, token)


def ask_each(
    coordinator: Coordinator,
    call: Call,
    names: tuple[str, ...],
    ask: Callable[[str], Request],
    combined: Callable[[list[Response]], Response],
) -> Iterator[None]:
    """Puts a request to the shard of each group or id, in order, before anything that the client sent later."""
    distinct = list(dict.fromkeys(names))  # an answer must not outgrow its request
    gathering = Gathering(len(distinct), lambda parts: call.answer(combined(parts)))
    for number, name in enumerate(distinct, 1):
        if number % STEP == 0:
            yield
        part = gathering.part(ask(name))
        shard = coordinator.shard(name)
        if shard is None:
            part.answer(coordinator.without_shard(part.request, name))
        else:
            shard.submit(part.request, context(coordinator, call, part))


def context(coordinator: Coordinator, call: Call, asker: Asker) -> RequestContext:
    """Of a part of the call's request."""
    return RequestContext(coordinator.replies.open(asker), call.client_id, call.connection.host)


class Gathering:
    """Answers of several shards, which ``finish`` gets, in the order they were asked for, when the last is there."""

    def __init__(self, expected: int, finish: Callable[[list[Response]], None]) -> None:
        self._parts: list[Response | None] = [None] * expected
        self._missing = expected
        self._finish = finish
        self._given = 0
        if not expected:
            finish([])

    def part(self, request: Request) -> Part:
        """The asker of the next part."""
        self._given += 1
        return Part(request, self, self._given - 1)

    def take(self, place: int, response: Response) -> None:
        """One part's answer."""
        self._parts[place] = response
        self._missing -= 1
        if not self._missing:
            self._finish([part for part in self._parts if part is not None])


class Part:
    """Asks a shard on behalf of a gathering."""

    def __init__(self, request: Request, gathering: Gathering, place: int) -> None:
        self.request = request
        self._gathering = gathering
        self._place = place

    def answer(self, response: Response) -> None:
        """See ``Asker.answer``."""
        self._gathering.take(self._place, response)
