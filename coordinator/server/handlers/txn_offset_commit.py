"""TxnOffsetCommit (28): offsets of a group that take effect when a transaction commits. Answered when they are on disk.

The group's partition of ``__consumer_offsets`` takes part in the transaction as the partitions of records do: the
transaction's coordinator is asked before the first offsets are taken (see ``coordinator.runtime.admission``).
"""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from typing import cast

from coordinator.group_coordinator import GroupCoordinator, GroupShard
from coordinator.groups.refusals import error_response
from coordinator.metadata.catalog import OFFSETS_TOPIC, Catalog
from coordinator.runtime.admission import Admission, TransactionalWrite
from coordinator.runtime.effects import RequestContext
from coordinator.runtime.kept_epochs import KeptEpochWrite
from coordinator.runtime.participants import TransactionName
from coordinator.runtime.shard import ShardState
from coordinator.server.call import Call, Handler
from coordinator.server.handlers.known_topics import once_topics_are_known
from coordinator.server.node import Node
from protocol.errors import ErrorCode
from protocol.messages.transactions import TxnOffsetCommitRequest


def handler(node: Node) -> Handler:
    """``coordinator/groups/pending_offsets.py`` decides it, once the transaction takes it in."""
    groups, catalog, admission = node.groups, node.catalog, node.transactions.admission

    def handle(call: Call) -> None:
        request = cast("TxnOffsetCommitRequest", call.request)
        shard = groups.shard(request.group_id)
        if shard is None:
            call.answer(groups.without_shard(request, request.group_id))
        else:
            _Admitting(call, request, groups, shard, catalog).enter(admission)

    return once_topics_are_known(node, handle)


class _Admitting:
    """One request on its way into its transaction. Also the shard as the admission sees it."""

    def __init__(
        self, call: Call, request: TxnOffsetCommitRequest, groups: GroupCoordinator, shard: GroupShard, catalog: Catalog
    ) -> None:
        self._call = call
        self._request = request
        self._groups = groups
        self._shard = shard
        self._key = OFFSETS_TOPIC, catalog.topics[OFFSETS_TOPIC].topic_id, shard.partition
        self._forget_bytes = call.keep_bytes()  # it is served to its end, also when its client is gone

    def open_epoch(self, producer_id: int) -> int | None:
        """See ``Participant``."""
        return self._shard.core.open_epoch(producer_id)

    def enter(self, admission: Admission) -> None:
        """Has the request taken into its transaction, or refused. A shard that does not serve refuses it by itself."""
        if self._shard.state is not ShardState.ACTIVE:
            self._decide(self._request)
            return
        request = self._request
        name = TransactionName(request.transactional_id, request.producer_id, request.producer_epoch)

        def proceed(asked: TxnOffsetCommitRequest) -> None:
            """No end marker may come between this and the decision, so what has to wait enters once more."""
            if self._shard.is_unfinished(request.group_id):
                self._shard.when_finished(request.group_id, lambda: self.enter(admission))
            else:
                self._decide(asked)

        def proceed_as(producer_id: int, producer_epoch: int) -> None:
            proceed(replace(request, producer_id=producer_id, producer_epoch=producer_epoch))

        if request.keeps_epoch:
            admission.enter_under_kept_epoch(name, [KeptEpochWrite(self._key, self, proceed_as, self._refuse)])
        else:
            write = TransactionalWrite(self._key, self, 0, partial(proceed, request), self._refuse)
            admission.enter(name, [write])

    def _decide(self, asked: TxnOffsetCommitRequest) -> None:
        call, connection = self._call, self._call.connection
        context = RequestContext(self._groups.replies.open(call), call.client_id, connection.host, connection.number)
        self._shard.submit(asked, context, was_held=True)
        self._forget_bytes()

    def _refuse(self, code: ErrorCode, message: str) -> None:
        self._call.answer(error_response(self._request, code, message))
        self._forget_bytes()
