"""What the parts of the admin share: the cluster they talk to and how long a call may take."""

from __future__ import annotations

from typing import Final

from client.cluster import Cluster
from client.deadline import Deadline
from client.errors import InvalidGroupIdError
from protocol.codec import MAX_STRING_BYTES
from protocol.messages.cluster import MetadataRequest, MetadataResponse

DEFAULT_TIMEOUT_MS: Final = 30_000


class AdminCalls:
    """Base of the parts of ``Admin``."""

    _cluster: Cluster

    @staticmethod
    def _deadline(timeout_ms: int | None) -> Deadline:
        return Deadline(DEFAULT_TIMEOUT_MS if timeout_ms is None else timeout_ms)

    async def _metadata(self, topics: tuple[str, ...] | None, deadline: Deadline) -> MetadataResponse:
        return await self._cluster.call(MetadataRequest(topics), MetadataResponse, deadline=deadline)


def fits(text: str) -> bool:
    """Whether a daemon reads a text of this length at all; one that is longer would cost the connection."""
    return len(text) <= MAX_STRING_BYTES and len(text.encode()) <= MAX_STRING_BYTES


def checked_group(group_id: str) -> str:
    """``group_id``; raises ``InvalidGroupIdError`` for one that no daemon would read. Daemons judge the others."""
    if not fits(group_id):
        raise InvalidGroupIdError(
            f"group id {group_id[:60]!r}... is longer than {MAX_STRING_BYTES} bytes; choose a shorter one"
        )
    return group_id
