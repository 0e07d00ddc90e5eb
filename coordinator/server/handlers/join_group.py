"""JoinGroup (11): a member asks to be in the next generation of its group. Answered when that has begun."""

from __future__ import annotations

from coordinator.server.call import Handler
from coordinator.server.handlers.shard_requests import to_group_shard
from coordinator.server.node import Node


def handler(node: Node) -> Handler:
    """``coordinator/groups/join.py`` decides it."""
    return to_group_shard(node.groups)
