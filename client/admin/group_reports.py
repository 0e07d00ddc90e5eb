"""What can be learned about groups from outside: listings, descriptions, committed offsets, lag."""

from __future__ import annotations

from typing import Final

from client.admin.leaders import coordinating_nodes, of_each
from client.errors import error_for
from client.transport.cluster import Cluster
from client.transport.connection import Connection
from client.transport.deadline import Deadline
from client.transport.group_offsets import fetch_committed
from client.transport.list_offsets import list_offsets
from client.transport.retry import retrying
from client.types.descriptions import GroupDescription, GroupListing, MemberDescription, PartitionLag
from client.types.records import OffsetAndMetadata
from protocol.errors import ErrorCode, ProtocolError
from protocol.messages.groups import (
    DescribedGroup,
    DescribeGroupsRequest,
    DescribeGroupsResponse,
    ListGroupsRequest,
    ListGroupsResponse,
)
from protocol.messages.records import LATEST_TIMESTAMP
from protocol.subscription import (
    CONSUMER_PROTOCOL_TYPE,
    SPARK_PROTOCOL_TYPE,
    TopicPartition,
    decode_assignment,
    decode_subscription,
)

_OFFSETS_TOPIC: Final = "__consumer_offsets"


async def list_groups(
    cluster: Cluster, states: tuple[str, ...], protocol_types: tuple[str, ...], deadline: Deadline
) -> list[GroupListing]:
    """The groups that match both filters (an empty one keeps all), sorted by id, from every node that coordinates groups."""
    request = ListGroupsRequest(states, protocol_types)

    async def once() -> list[GroupListing]:
        nodes = await coordinating_nodes(cluster, _OFFSETS_TOPIC, deadline)
        answers = await of_each(cluster, nodes, lambda connection: _groups_of(connection, request, deadline))
        return sorted((group for groups in answers.values() for group in groups), key=lambda group: group.group_id)

    return await retrying(once, deadline=deadline, backoff=cluster.backoff, what="ListGroupsRequest")


async def _groups_of(connection: Connection, request: ListGroupsRequest, deadline: Deadline) -> list[GroupListing]:
    response = await connection.request(request, ListGroupsResponse, timeout_s=max(0.001, deadline.remaining_s()))
    if response.error_code != ErrorCode.NONE:
        raise error_for(response.error_code, f"{connection.peer}: {response.error_message}")
    return [GroupListing(group.group_id, group.protocol_type, group.group_state) for group in response.groups]


async def describe_group(cluster: Cluster, group_id: str, deadline: Deadline) -> GroupDescription:
    """One group, as its coordinator sees it."""

    async def once() -> DescribedGroup:
        request = DescribeGroupsRequest((group_id,))
        response = await cluster.call_coordinator(group_id, request, DescribeGroupsResponse, deadline=deadline)
        (group,) = response.groups
        if group.error_code != ErrorCode.NONE:
            raise error_for(group.error_code, f"group {group_id!r}: {group.error_message}")
        return group

    what = f"describing group {group_id!r}"
    group = await retrying(once, deadline=deadline, backoff=cluster.backoff, what=what)
    host, port = await cluster.coordinator_address(group_id, deadline)
    members = tuple(
        MemberDescription(
            member.member_id,
            member.group_instance_id,
            member.client_id,
            member.client_host,
            _assigned(group.protocol_type, member.member_assignment),
            member.member_assignment,
            _topics(group.protocol_type, member.member_metadata),
            member.client_software,
        )
        for member in group.members
    )
    return GroupDescription(
        group_id,
        group.group_state,
        group.generation_id,
        group.protocol_type,
        group.protocol_data,
        f"{host}:{port}",
        group.leader,
        group.last_rebalance_reason,
        members,
        group.waiting_for,
        group.pending_members,
        group.empty_since_ms if group.empty_since_ms >= 0 else None,
        group.pending_offsets,
    )


def _assigned(protocol_type: str, assignment: bytes) -> tuple[TopicPartition, ...]:
    """What a consumer, or a query on Spark, owns. A blob that does not parse shows as nothing."""
    if protocol_type not in (CONSUMER_PROTOCOL_TYPE, SPARK_PROTOCOL_TYPE):
        return ()
    try:
        return decode_assignment(assignment)
    except ProtocolError:
        return ()


def _topics(protocol_type: str, metadata: bytes) -> tuple[str, ...]:
    """What a consumer subscribes to; nothing where that does not parse."""
    if protocol_type != CONSUMER_PROTOCOL_TYPE:
        return ()
    try:
        return tuple(sorted(decode_subscription(metadata, None).topics))
    except ProtocolError:
        return ()


async def committed_offsets(
    cluster: Cluster, group_id: str, deadline: Deadline
) -> dict[TopicPartition, OffsetAndMetadata]:
    """Everything a group has committed, sorted."""
    return dict(sorted((await fetch_committed(cluster, group_id, None, deadline)).items()))


async def group_lag(cluster: Cluster, group_id: str, deadline: Deadline) -> list[PartitionLag]:
    """Each partition that a group has committed or owns, sorted, with how far behind it is there.

    A partition that is gone shows with what was committed and no end.
    """
    group = await describe_group(cluster, group_id, deadline)
    committed = await committed_offsets(cluster, group_id, deadline)
    owners = {partition: member.member_id for member in group.members for partition in member.assignment}
    partitions = sorted({*committed, *owners})
    cluster.track({partition.topic for partition in partitions})
    topology = await cluster.refresh(deadline)
    there = {
        partition: LATEST_TIMESTAMP
        for partition in partitions
        if partition.topic in topology.topics and partition.partition < topology.partitions(partition.topic)
    }
    ends = await list_offsets(cluster, there, deadline) if there else {}
    rows: list[PartitionLag] = []
    for partition in partitions:
        position = committed[partition].offset if partition in committed else None
        end = ends[partition].offset if partition in ends else None
        lag = None if position is None or end is None else max(0, end - position)
        rows.append(PartitionLag(*partition, position, end, lag, owners.get(partition)))
    return rows
