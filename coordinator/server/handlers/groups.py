"""Requests to one group: JoinGroup (11), Heartbeat (12), LeaveGroup (13), SyncGroup (14), OffsetCommit (8), OffsetFetch (9),
OffsetDelete (47)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import cast

from coordinator.groups.core import GroupCore
from coordinator.metadata.catalog import Catalog
from coordinator.runtime.effects import Effects, Instant, RequestContext
from coordinator.runtime.group_coordinator import GroupCoordinator
from coordinator.runtime.refusals import refusal
from coordinator.runtime.shard import Decide
from coordinator.server.connection import Call
from coordinator.server.dispatch import Handler
from protocol.errors import ErrorCode
from protocol.messages import Request, Response
from protocol.messages.groups import (
    HeartbeatRequest,
    JoinGroupRequest,
    LeaveGroupRequest,
    SyncGroupRequest,
)
from protocol.messages.offsets import OffsetCommitRequest, OffsetDeleteRequest, OffsetFetchRequest

_NOT_FOUND_YET = "nobody has asked for this group's coordinator since the daemon started: send FindCoordinator first"


class GroupHandlers:
    """Passes group requests to their shard."""

    def __init__(self, groups: GroupCoordinator, catalog: Catalog) -> None:
        self._groups = groups
        self._catalog = catalog

    def table(self) -> Mapping[type[Request], Handler]:
        """The handlers of this family."""
        return {
            JoinGroupRequest: self._to_core(GroupCore.join),
            SyncGroupRequest: self._to_core(GroupCore.sync),
            HeartbeatRequest: self._to_core(GroupCore.heartbeat),
            LeaveGroupRequest: self._to_core(GroupCore.leave),
            OffsetCommitRequest: self._to_core(self._commit),
            OffsetFetchRequest: self._to_core(self._fetch_offsets),
            OffsetDeleteRequest: self._to_core(self._delete_offsets),
        }

    def _to_core(self, decide: Decide) -> Handler:
        groups = self._groups

        def handle(call: Call) -> None:
            request = cast("JoinGroupRequest", call.request)  # or another one: all of these name their group
            shard = groups.shard(request.group_id)
            if shard is None:
                call.answer(without_shard(groups, request, request.group_id))
                return
            token = groups.replies.open(call)
            connection = call.connection
            shard.submit(decide, request, RequestContext(token, call.client_id, connection.host, connection.number))
            if not call.open:
                return

            def abandon() -> None:
                if groups.replies.forget(token):
                    shard.abandon(request, token)

            call.on_abandon = abandon

        return handle

    def _commit(self, core: GroupCore, request: OffsetCommitRequest, context: RequestContext, now: Instant) -> Effects:
        return core.commit(request, context, now, self._catalog.has, self._groups.topic_id)

    def _fetch_offsets(
        self, core: GroupCore, request: OffsetFetchRequest, context: RequestContext, now: Instant
    ) -> Effects:
        return core.fetch_offsets(request, context, now, self._groups.is_gone)

    def _delete_offsets(
        self, core: GroupCore, request: OffsetDeleteRequest, context: RequestContext, now: Instant
    ) -> Effects:
        return core.delete_offsets(request, context, now, self._catalog.has)


def without_shard(groups: GroupCoordinator, request: Request, group_id: str) -> Response:
    """The answer to a request for a group whose shard is not there."""
    fault = groups.group_id_fault(group_id)
    if fault is not None:
        return refusal(request, fault.code, fault.message)
    return refusal(request, ErrorCode.NOT_COORDINATOR, _NOT_FOUND_YET)
