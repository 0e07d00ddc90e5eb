"""What the parts of the admin share: the cluster they talk to and how long a call may take."""

from __future__ import annotations

from typing import Final

from client.errors import error_for
from client.transport.cluster import Cluster
from client.transport.deadline import Deadline, checked_wait
from client.transport.metadata import Address
from protocol.errors import ErrorCode
from protocol.messages.cluster import MetadataRequest, MetadataResponse
from protocol.subscription import TopicPartition

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


async def coordinating_nodes(cluster: Cluster, topic: str, deadline: Deadline) -> list[TopicPartition]:
    """One partition of an internal topic for each node that leads any: those nodes coordinate what it holds."""
    cluster.track([topic])
    await cluster.refresh(deadline)
    one_of_each: dict[Address, TopicPartition] = {}
    for index in range(cluster.topology.partitions(topic)):
        partition = TopicPartition(topic, index)
        leader = cluster.topology.leader(partition)
        if leader is None:
            raise error_for(ErrorCode.COORDINATOR_NOT_AVAILABLE, f"{topic}-{index} has no leader")
        one_of_each.setdefault(leader, partition)
    return list(one_of_each.values())
