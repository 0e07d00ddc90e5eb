"""ApiVersions (18): which requests this node takes, in which versions, and how large they may be."""

from __future__ import annotations

from importlib.metadata import PackageNotFoundError, version

from coordinator.server.call import Handler
from coordinator.server.node import Node
from protocol.errors import ErrorCode
from protocol.limits import max_request_bytes, max_request_elements
from protocol.messages import REQUESTS
from protocol.messages.cluster import ApiVersion, ApiVersionsResponse


def handler(node: Node) -> Handler:
    """Gives every client the same answer."""
    most = node.settings.max_frame_bytes
    keys = tuple(
        ApiVersion(key, *request.versions, max_request_bytes(key, most), max_request_elements(key))
        for key, request in sorted(REQUESTS.items())
    )
    response = ApiVersionsResponse(ErrorCode.NONE, keys, "cohort", _own_version())
    return lambda call: call.answer(response)


def _own_version() -> str:
    try:
        return version("aiocohort")
    except PackageNotFoundError:
        return "unknown"
