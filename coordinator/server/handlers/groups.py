"""Requests to one group: JoinGroup (11), Heartbeat (12), LeaveGroup (13), SyncGroup (14), OffsetCommit (8), OffsetFetch (9),
OffsetDelete (47)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import cast

from coordinator.group_coordinator import GroupCoordinator
from coordinator.groups.refusals import error_response
from coordinator.runtime.effects import RequestContext
from coordinator.server.call import Call
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

    def __init__(self, groups: GroupCoordinator) -> None:
        self._groups = groups

    def table(self) -> Mapping[type[Request], Handler]:
        """The handlers of this family."""
        kinds = (
            JoinGroupRequest,
            SyncGroupRequest,
            HeartbeatRequest,
            LeaveGroupRequest,
            OffsetCommitRequest,
            OffsetFetchRequest,
            OffsetDeleteRequest,
        )
        return dict.fromkeys(kinds, self._handle)

    def _handle(self, call: Call) -> None:
        groups = self._groups
        request = cast("JoinGroupRequest", call.request)  # or another one: all of these name their group
        shard = groups.shard(request.group_id)
        if shard is None:
            call.answer(without_shard(groups, request, request.group_id))
            return
        token = groups.replies.open(call)
        connection = call.connection
        shard.submit(request, RequestContext(token, call.client_id, connection.host, connection.number))
        if not call.open:
            return

        def abandon() -> None:
            if groups.replies.forget(token):
                shard.abandon(request, token)

        call.on_abandon = abandon


def without_shard(groups: GroupCoordinator, request: Request, group_id: str) -> Response:
    """The answer to a request for a group whose shard is not there."""
    fault = groups.group_id_fault(group_id)
    if fault is not None:
        return error_response(request, fault.code, fault.message)
    return error_response(request, ErrorCode.NOT_COORDINATOR, _NOT_FOUND_YET)
