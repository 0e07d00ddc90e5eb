"""DescribeGroups (15): state and members of groups, as they are on disk."""

from __future__ import annotations

from collections.abc import Iterator
from typing import cast

from coordinator.server.call import Call, Handler
from coordinator.server.handlers.shard_requests import ask_each
from coordinator.server.node import Node
from protocol.messages import Response
from protocol.messages.groups import DescribeGroupsRequest, DescribeGroupsResponse


def handler(node: Node) -> Handler:
    """Describes each group once what it shows is on disk; one whose shard is not ready says so."""

    def handle(call: Call) -> Iterator[None]:
        request = cast("DescribeGroupsRequest", call.request)
        return ask_each(node.groups, call, request.groups, lambda name: DescribeGroupsRequest((name,)), _combined)

    return handle


def _combined(parts: list[Response]) -> Response:
    return DescribeGroupsResponse(
        tuple(group for part in parts for group in cast("DescribeGroupsResponse", part).groups)
    )
