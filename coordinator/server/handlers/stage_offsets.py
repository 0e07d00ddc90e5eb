"""StageOffsets (1001): what the next batch of a group reads. Answered when it is on disk."""

from __future__ import annotations

from coordinator.server.call import Handler
from coordinator.server.handlers.known_topics import once_topics_are_known
from coordinator.server.handlers.shard_requests import to_group_shard
from coordinator.server.node import Node


def handler(node: Node) -> Handler:
    """``coordinator/groups/staged.py`` decides it."""
    return once_topics_are_known(node, to_group_shard(node.groups))
