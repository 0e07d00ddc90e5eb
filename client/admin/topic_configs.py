"""The admin's calls about the settings of topics and what their logs hold."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final

from client.admin.arguments import (
    LOWEST_INT64,
    checked_config,
    checked_mapping,
    checked_offset,
    checked_partition,
    checked_text,
    checked_topics,
)
from client.admin.calls import AdminCalls
from client.admin.failures import all_or_failures, raise_error_codes, raise_failures
from client.admin.leaders import of_each
from client.errors import error_for
from client.transport.cluster import Cluster
from client.transport.connection import Connection
from client.transport.deadline import Deadline
from client.transport.metadata import Address
from client.transport.request_limits import joined, pieces_of
from client.transport.retry import retrying
from client.types.descriptions import LogDescription
from protocol.errors import ErrorCode
from protocol.messages.configs import (
    DELETE,
    SET,
    AlterableConfig,
    AlterableTopicConfigs,
    DescribeConfigsRequest,
    DescribeConfigsResponse,
    DescribedLog,
    DescribedTopicConfigs,
    DescribeLogDirsRequest,
    DescribeLogDirsResponse,
    IncrementalAlterConfigsRequest,
    IncrementalAlterConfigsResponse,
)
from protocol.messages.records import (
    DeletedRecords,
    DeleteRecordsPartition,
    DeleteRecordsRequest,
    DeleteRecordsResponse,
    DeleteRecordsTopic,
)
from protocol.subscription import TopicPartition

_MOVED: Final = frozenset({ErrorCode.NOT_LEADER_OR_FOLLOWER, ErrorCode.LEADER_NOT_AVAILABLE})


class TopicConfigCalls(AdminCalls):
    """Base of ``Admin``: settings of topics, and the records they keep."""

    async def alter_topic_config(
        self, name: str, changes: Mapping[str, object | None], *, timeout_ms: int | None = None
    ) -> None:
        """Changes settings of a topic while it is in use; ``None`` takes one back to the daemon's default.

        The names are Kafka's, such as ``retention.ms``; ``describe_topics`` shows all. All changes are made, durably and
        with effect on the open logs, or none. Raises ``InvalidConfigError`` (the text names what is legal),
        ``UnknownTopicOrPartitionError``, and ``InvalidTopicError`` for internal topics.
        """
        deadline = self._deadline(timeout_ms)
        entries = tuple(
            AlterableConfig(key, DELETE) if value is None else AlterableConfig(key, SET, config_text(value))
            for key, value in checked_config(changes).items()
        )
        request = IncrementalAlterConfigsRequest(
            (AlterableTopicConfigs(checked_text("the name of a topic", name), entries),),
            timeout_ms=deadline.remaining_ms(),
        )
        response = await self._cluster.call(request, IncrementalAlterConfigsResponse, deadline=deadline)
        raise_error_codes((topic.name, topic.error_code, topic.error_message) for topic in response.responses)

    async def delete_records(
        self, offsets: Mapping[TopicPartition, int], *, timeout_ms: int | None = None
    ) -> dict[TopicPartition, int]:
        """Deletes the records below an offset of each partition, durably; returns where each begins now.

        -1 deletes all that is acknowledged, up to the first record of a transaction that is open; for its end the daemon
        waits up to 2 s, or half of ``timeout_ms`` if that is less. An offset below the beginning changes nothing. Groups
        that had not read the deleted records go where their ``auto_offset_reset`` says.
        Raises ``OffsetOutOfRangeError`` for an offset behind the end, or behind the first record of an open transaction,
        ``PolicyViolationError`` for a topic that is only compacted, ``UnknownTopicOrPartitionError``, and
        ``InvalidTopicError`` for internal topics.
        """
        deadline = self._deadline(timeout_ms)
        by_topic: dict[str, list[DeleteRecordsPartition]] = {}
        example = 'partitions with offsets, such as {TopicPartition("orders", 0): 100}'
        for given, offset in checked_mapping("delete_records", offsets, example).items():
            partition = checked_partition("delete_records", given)
            asked = DeleteRecordsPartition(partition.partition, checked_offset(partition, offset, LOWEST_INT64))
            by_topic.setdefault(partition.topic, []).append(asked)
        results = await _delete_records(self._cluster, by_topic, deadline)
        raise_failures(
            {
                partition: error_for(deleted.error_code, deleted.error_message)
                for partition, deleted in results.items()
                if deleted.error_code != ErrorCode.NONE
            }
        )
        return {partition: deleted.low_watermark for partition, deleted in results.items()}

    async def describe_logs(self, *names: str, timeout_ms: int | None = None) -> dict[TopicPartition, LogDescription]:
        """What the logs of topics hold and how far log maintenance is, by partition, in the order asked for.

        Raises ``UnknownTopicOrPartitionError`` naming those that do not exist.
        """
        deadline = self._deadline(timeout_ms)
        request = DescribeLogDirsRequest(checked_topics("describe_logs", names))
        found = await described_logs(self._cluster, request, deadline)
        topology = self._cluster.topology
        unknown = LogDescription(-1, -1, -1, -1, -1, "its leader was not reached")
        return {
            partition: _log_description(logs[leader]) if (leader := topology.leader_id(partition)) in logs else unknown
            for partition, logs in found.items()
        }

    async def _topic_configs(self, names: tuple[str, ...], timeout_ms: int) -> dict[str, DescribedTopicConfigs]:
        deadline = self._deadline(timeout_ms)
        response = await self._cluster.call(DescribeConfigsRequest(names), DescribeConfigsResponse, deadline=deadline)
        return {topic.name: topic for topic in response.results}


def config_text(value: object) -> str:
    """The value of a setting as it travels."""
    return str(value).lower() if isinstance(value, bool) else str(value)


async def described_logs(
    cluster: Cluster, request: DescribeLogDirsRequest, deadline: Deadline
) -> dict[TopicPartition, dict[int, DescribedLog]]:
    """What each node that lives says of its replicas: partitions in the order asked for, in each the log by node.

    Raises an error when a topic is not known to the nodes, and one that names the nodes that did not answer.
    """
    cluster.track(request.topic_names)

    async def ask(connection: Connection) -> DescribeLogDirsResponse:
        timeout_s = cluster.attempt_s(deadline)
        return joined(
            request,
            [
                await connection.request(piece, DescribeLogDirsResponse, timeout_s=timeout_s)
                for piece in pieces_of(request)
            ],
        )

    async def once() -> dict[int, DescribeLogDirsResponse]:
        nodes = (await cluster.refresh(deadline)).nodes
        answers = await of_each(cluster, nodes.values(), ask)
        return {node_id: answers[address] for node_id, address in nodes.items()}

    answers = await retrying(once, deadline=deadline, backoff=cluster.backoff, what="DescribeLogDirsRequest")
    topology = cluster.topology
    results = [(node_id, topic) for node_id, answer in answers.items() for topic in answer.results]
    refused = [topic for _, topic in results if topic.name not in topology.topics]
    raise_error_codes((topic.name, topic.error_code, topic.error_message) for topic in refused)
    found: dict[TopicPartition, dict[int, DescribedLog]] = {
        TopicPartition(name, index): {}
        for name in request.topic_names
        if name in topology.topics
        for index in range(topology.partitions(name))
    }
    for node_id, topic in results:
        for each in topic.partitions:
            found.setdefault(TopicPartition(topic.name, each.partition_index), {})[node_id] = each
    return found


def _log_description(log: DescribedLog) -> LogDescription:
    return LogDescription(
        log.log_start_offset,
        log.high_watermark,
        log.size,
        log.segments,
        log.dirty_percent,
        log.error_message or log.fault,
    )


async def _delete_records(
    cluster: Cluster, by_topic: Mapping[str, Sequence[DeleteRecordsPartition]], deadline: Deadline
) -> dict[TopicPartition, DeletedRecords]:
    """What the leader of each partition answers, in the order asked for. One that has moved is asked again elsewhere."""
    asked = {TopicPartition(topic, each.partition_index): each for topic, some in by_topic.items() for each in some}
    results: dict[TopicPartition, DeletedRecords] = {}
    cluster.track(by_topic)

    async def ask(leader: Address | None, partitions: Sequence[TopicPartition]) -> None:
        topics: dict[str, list[DeleteRecordsPartition]] = {}
        for partition in partitions:
            topics.setdefault(partition.topic, []).append(asked[partition])
        wanted = tuple(DeleteRecordsTopic(topic, tuple(some)) for topic, some in topics.items())
        request = DeleteRecordsRequest(wanted, deadline.remaining_ms())
        if leader is None:  # no node leads it, or it does not exist: any node says so
            response = await cluster.call(request, DeleteRecordsResponse, deadline=deadline)
        else:
            connection = await cluster.connection_to(leader)
            timeout_s = cluster.attempt_s(deadline)
            pieces = pieces_of(request)
            response = joined(
                request,
                [await connection.request(piece, DeleteRecordsResponse, timeout_s=timeout_s) for piece in pieces],
            )
        for topic in response.topics:
            for deleted in topic.partitions:
                results[TopicPartition(topic.name, deleted.partition_index)] = deleted

    async def once() -> None:
        topology = await cluster.refresh(deadline)
        left = [partition for partition in asked if partition not in results or results[partition].error_code in _MOVED]
        leaders: dict[Address | None, list[TopicPartition]] = {}
        for partition in left:
            leaders.setdefault(topology.leader(partition), []).append(partition)
        await all_or_failures({leader: ask(leader, some) for leader, some in leaders.items()})
        moved = [results[partition] for partition in left if results[partition].error_code in _MOVED]
        if moved:
            raise error_for(moved[0].error_code, moved[0].error_message)

    await retrying(once, deadline=deadline, backoff=cluster.backoff, what="DeleteRecordsRequest")
    return {partition: results[partition] for partition in asked}
