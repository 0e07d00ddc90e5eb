"""LeaveGroup (13): members leave, or an administrator removes them."""

from __future__ import annotations

from coordinator.server.call import Handler
from coordinator.server.handlers.shard_requests import to_group_shard
from coordinator.server.node import Node


def handler(node: Node) -> Handler:
    """``coordinator/groups/leave.py`` decides it."""
    return to_group_shard(node.groups)
