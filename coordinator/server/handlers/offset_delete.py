"""OffsetDelete (47): committed offsets of a group are erased. Answered when that is on disk."""

from __future__ import annotations

from coordinator.server.call import Handler
from coordinator.server.handlers.shard_requests import to_group_shard
from coordinator.server.node import Node


def handler(node: Node) -> Handler:
    """``coordinator/groups/offsets.py`` decides it."""
    return to_group_shard(node.groups)
