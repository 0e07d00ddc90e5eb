"""OffsetFetch (9): the committed offsets of a group."""

from __future__ import annotations

from coordinator.server.call import Handler
from coordinator.server.handlers.known_topics import once_metadata_is_read
from coordinator.server.handlers.shard_requests import to_group_shard
from coordinator.server.node import Node


def handler(node: Node) -> Handler:
    """``coordinator/groups/offsets.py`` decides it."""
    return once_metadata_is_read(node, to_group_shard(node.groups))
