"""ApiVersions (18): which requests this node takes, in which versions, and how large they may be."""

from __future__ import annotations

from importlib.metadata import PackageNotFoundError, version
from typing import cast

from coordinator.server.call import Call, Handler
from coordinator.server.node import Node
from protocol.errors import ErrorCode
from protocol.limits import max_request_bytes, max_request_elements
from protocol.messages import REQUESTS
from protocol.messages.cluster import ApiVersion, ApiVersionsRequest, ApiVersionsResponse


def handler(node: Node) -> Handler:
    """Gives every client the same answer, and notes what it runs."""
    most = node.settings.max_frame_bytes
    keys = tuple(
        ApiVersion(key, *request.versions, max_request_bytes(key, most), max_request_elements(key))
        for key, request in sorted(REQUESTS.items())
    )
    response = ApiVersionsResponse(ErrorCode.NONE, keys, "cohort", _own_version())

    def handle(call: Call) -> None:
        request = cast("ApiVersionsRequest", call.request)
        call.connection.introduce(request.client_software_name, request.client_software_version)
        call.answer(response)

    return handle


def _own_version() -> str:
    try:
        return version("aiocohort")
    except PackageNotFoundError:
        return "unknown"
