"""Heartbeat (12): a member renews its session.

With ``max_wait_ms`` it is a long poll, answered as soon as the group needs the member.
"""

from __future__ import annotations

from typing import cast

from coordinator.groups.core import GroupCore
from coordinator.server.call import Call, Handler
from coordinator.server.handlers.shard_requests import to_group_shard
from coordinator.server.node import Node
from protocol.messages.groups import CARRY_ON, HeartbeatRequest


def handler(node: Node) -> Handler:
    """``coordinator/groups/session.py`` decides it: what most of them come to, which is little, at once."""
    shard_of, answer, decide = node.groups.shard, node.groups.replies.answer, to_group_shard(node.groups)

    def handle(call: Call) -> None:
        request = cast("HeartbeatRequest", call.request)
        shard = shard_of(request.group_id)
        if shard is not None and shard.move_timers(GroupCore.renewed, request, call.connection.software):
            answer(call, CARRY_ON)
        else:
            decide(call)

    return handle
