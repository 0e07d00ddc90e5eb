"""OffsetCommit (8): offsets of a group are stored. Answered when they are on disk."""

from __future__ import annotations

from coordinator.server.call import Handler
from coordinator.server.handlers.known_topics import once_topics_are_known
from coordinator.server.handlers.shard_requests import to_group_shard
from coordinator.server.node import Node


def handler(node: Node) -> Handler:
    """``coordinator/groups/offsets.py`` decides it."""
    return once_topics_are_known(node, to_group_shard(node.groups))
