"""Which nodes a call of the admin has to ask: the leaders of partitions, the coordinators, all that live."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, Sequence
from typing import TypeVar

from client.admin.failures import all_or_failures, raise_failures
from client.errors import CohortError, LeaderNotAvailableError, UnknownTopicOrPartitionError, error_for
from client.transport.cluster import Cluster
from client.transport.connection import Connection
from client.transport.deadline import Deadline
from client.transport.metadata import Address
from protocol.errors import ErrorCode
from protocol.subscription import TopicPartition

T = TypeVar("T")


async def of_each(
    cluster: Cluster, addresses: Iterable[Address], ask: Callable[[Connection], Awaitable[T]]
) -> dict[Address, T]:
    """What each of these nodes answers. Raises one error that names all that did not, and why."""

    async def one(address: Address) -> T:
        return await ask(await cluster.connection_to(address))

    return await all_or_failures({address: one(address) for address in dict.fromkeys(addresses)})


async def coordinating_nodes(cluster: Cluster, topic: str, deadline: Deadline) -> list[Address]:
    """The nodes that lead a partition of an internal topic: they coordinate what it holds. None before there is one."""
    cluster.track([topic])
    await cluster.refresh(deadline)
    if topic not in cluster.topology.topics:
        return []  # a cluster makes it once it has enough nodes, and nothing can be coordinated before
    leaders: dict[Address, None] = {}
    for index in range(cluster.topology.partitions(topic)):
        leader = cluster.topology.leader(TopicPartition(topic, index))
        if leader is None:
            raise error_for(ErrorCode.COORDINATOR_NOT_AVAILABLE, f"{topic}-{index} has no leader")
        leaders[leader] = None
    return list(leaders)


async def by_leader(
    cluster: Cluster, partitions: Sequence[TopicPartition], deadline: Deadline
) -> dict[Address, list[TopicPartition]]:
    """Partitions by the node that leads them now. Raises one error for those that do not exist or have no leader."""
    cluster.track({partition.topic for partition in partitions})
    topology = await cluster.refresh(deadline)
    leaders: dict[Address, list[TopicPartition]] = {}
    failures: dict[TopicPartition, CohortError] = {}
    for partition in partitions:
        name = f"{partition.topic}-{partition.partition}"
        leader = topology.leader(partition)
        if not topology.has(partition):
            unknown = UnknownTopicOrPartitionError(f"{name} does not exist")
            unknown.retriable = False  # the daemon was asked: waiting does not help
            failures[partition] = unknown
        elif leader is None:
            failures[partition] = LeaderNotAvailableError(f"{name} has no leader at the moment")
        else:
            leaders.setdefault(leader, []).append(partition)
    raise_failures(failures)
    return leaders
