"""Requests to one group: each goes to the shard of its group, whose core decides it."""

from __future__ import annotations

from typing import Final, cast

from coordinator.group_coordinator import GroupCoordinator
from coordinator.groups.refusals import error_response
from coordinator.runtime.effects import RequestContext
from coordinator.server.dispatch import Call, Handler
from protocol.errors import ErrorCode
from protocol.messages import Request, Response
from protocol.messages.groups import JoinGroupRequest

_NO_SHARD: Final = (
    "no client has asked for this group's coordinator since the daemon started: send FindCoordinator first"
)


def to_shard(groups: GroupCoordinator) -> Handler:
    """A handler that passes a request to the shard of the group that it names."""

    def handle(call: Call) -> None:
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

    return handle


def without_shard(groups: GroupCoordinator, request: Request, group_id: str) -> Response:
    """The answer to a request for a group whose shard is not there."""
    fault = groups.group_id_fault(group_id)
    if fault is not None:
        return error_response(request, fault.code, fault.message)
    return error_response(request, ErrorCode.NOT_COORDINATOR, _NO_SHARD)
