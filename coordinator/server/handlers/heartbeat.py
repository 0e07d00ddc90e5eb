"""Heartbeat (12): a member renews its session.

With ``max_wait_ms`` it is a long poll, answered as soon as the group needs the member.
"""

from __future__ import annotations

from coordinator.server.call import Handler
from coordinator.server.handlers.shard_requests import to_group_shard
from coordinator.server.node import Node


def handler(node: Node) -> Handler:
    """``coordinator/groups/heartbeat.py`` decides it."""
    return to_group_shard(node.groups)
