"""The group requests: JoinGroup (11), Heartbeat (12), LeaveGroup (13), SyncGroup (14), OffsetCommit (8), OffsetFetch (9),
DescribeGroups (15), ListGroups (16)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import cast

from coordinator.groups.core import GroupCore
from coordinator.groups.effects import Effects, Instant, RequestContext
from coordinator.metadata.catalog import Catalog
from coordinator.runtime.group_coordinator import GroupCoordinator
from coordinator.runtime.refusals import refusal
from coordinator.runtime.shard import Decide, ShardState
from coordinator.server.connection import Call
from coordinator.server.dispatch import Handler
from protocol.errors import ErrorCode
from protocol.messages import Request, Response
from protocol.messages.groups import (
    DescribedGroup,
    DescribeGroupsRequest,
    DescribeGroupsResponse,
    HeartbeatRequest,
    JoinGroupRequest,
    LeaveGroupRequest,
    ListGroupsRequest,
    ListGroupsResponse,
    SyncGroupRequest,
)
from protocol.messages.offsets import OffsetCommitRequest, OffsetFetchRequest

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
            OffsetFetchRequest: self._to_core(GroupCore.fetch_offsets),
            DescribeGroupsRequest: self.describe,
            ListGroupsRequest: self.list,
        }

    def _to_core(self, decide: Decide) -> Handler:
        groups = self._groups

        def handle(call: Call) -> None:
            request = cast("JoinGroupRequest", call.request)  # or another one: all of these name their group
            shard = groups.shard(request.group_id)
            if shard is None:
                call.answer(_not_found(call.request, request.group_id))
                return
            token = groups.replies.open(call)

            def abandon() -> None:
                if groups.replies.forget(token):
                    shard.abandon(token)

            call.on_abandon = abandon
            shard.submit(decide, request, RequestContext(token, call.client_id, call.connection.host))

        return handle

    def _commit(self, core: GroupCore, request: OffsetCommitRequest, context: RequestContext, now: Instant) -> Effects:
        return core.commit(request, context, now, self._catalog.has)

    def describe(self, call: Call) -> None:
        """Describes each group asked for; one whose shard is not ready says so."""
        request = cast("DescribeGroupsRequest", call.request)
        described: list[DescribedGroup] = []
        for group_id in request.groups:
            shard = self._groups.shard(group_id)
            if shard is not None and shard.state is ShardState.ACTIVE:
                described.append(shard.core.describe(group_id))
            else:
                code, message = ErrorCode.COORDINATOR_LOAD_IN_PROGRESS, "the coordinator is reading its log; try again"
                if shard is None:
                    code, message = ErrorCode.NOT_COORDINATOR, _NOT_FOUND_YET
                described.append(DescribedGroup(code, group_id, error_message=message))
        call.answer(DescribeGroupsResponse(tuple(described)))

    def list(self, call: Call) -> None:
        """Lists the groups of this node."""
        request = cast("ListGroupsRequest", call.request)
        if self._groups.loading():
            code, message = ErrorCode.COORDINATOR_LOAD_IN_PROGRESS, "a coordinator is reading its log; try again"
            call.answer(ListGroupsResponse(code, (), message))
            return
        states = frozenset(state.strip().lower() for state in request.states_filter)
        call.answer(ListGroupsResponse(ErrorCode.NONE, tuple(self._groups.list(states))))


def _not_found(request: Request, group_id: str) -> Response:
    if not group_id:
        return refusal(request, ErrorCode.INVALID_GROUP_ID, "a group id cannot be empty")
    return refusal(request, ErrorCode.NOT_COORDINATOR, _NOT_FOUND_YET)
