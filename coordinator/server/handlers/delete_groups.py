"""DeleteGroups (42): empty groups go, with their offsets."""

from __future__ import annotations

from collections.abc import Iterator
from typing import cast

from coordinator.server.call import Call, Handler
from coordinator.server.handlers.shard_requests import ask_each
from coordinator.server.node import Node
from protocol.messages import Response
from protocol.messages.groups import DeleteGroupsRequest, DeleteGroupsResponse


def handler(node: Node) -> Handler:
    """Deletes each group, and answers once all that went is gone from the disk as well."""

    def handle(call: Call) -> Iterator[None]:
        request = cast("DeleteGroupsRequest", call.request)
        return ask_each(node.groups, call, request.groups_names, lambda name: DeleteGroupsRequest((name,)), _combined)

    return handle


def _combined(parts: list[Response]) -> Response:
    return DeleteGroupsResponse(
        tuple(result for part in parts for result in cast("DeleteGroupsResponse", part).results)
    )
