"""SyncGroup (14): a member asks for its assignment, and the leader brings everybody's. Answered when they are on disk."""

from __future__ import annotations

from coordinator.server.call import Handler
from coordinator.server.handlers.shard_requests import to_group_shard
from coordinator.server.node import Node


def handler(node: Node) -> Handler:
    """``coordinator/groups/sync.py`` decides it."""
    return to_group_shard(node.groups)
