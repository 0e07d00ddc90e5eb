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
    shard_of, replies, renewed = node.groups.shard, node.groups.replies, GroupCore.renewed
    decide = to_group_shard(node.groups)

    def handle(call: Call) -> None:
        request = cast("HeartbeatRequest", call.request)
        shard = shard_of(request.group_id) if request.max_wait_ms <= 0 else None
        if shard is not None and shard.at_once(renewed, request, call.connection.software):
            replies.answer(call, CARRY_ON)
        else:
            decide(call)

    return handle
