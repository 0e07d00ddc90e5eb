"""What the parts of the admin share: the cluster they talk to and how long a call may take."""

from __future__ import annotations

from typing import Final

from client.transport.cluster import Cluster
from client.transport.deadline import Deadline, checked_wait
from protocol.messages.cluster import MetadataRequest, MetadataResponse

DEFAULT_TIMEOUT_MS: Final = 30_000


class AdminCalls:
    """Base of the parts of ``Admin``."""

    _cluster: Cluster

    @staticmethod
    def _deadline(timeout_ms: int | None) -> Deadline:
        if timeout_ms is None:
            return Deadline(DEFAULT_TIMEOUT_MS)
        return Deadline(checked_wait("timeout_ms", "milliseconds", timeout_ms))

    async def _metadata(self, topics: tuple[str, ...] | None, deadline: Deadline) -> MetadataResponse:
        return await self._cluster.call(MetadataRequest(topics), MetadataResponse, deadline=deadline)
