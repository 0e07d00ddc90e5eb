"""The admin's calls about the settings of topics and what their logs hold."""

from __future__ import annotations

from collections.abc import Mapping

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
from client.admin.failures import raise_error_codes, raise_failures
from client.errors import error_for
from client.types.descriptions import LogDescription
from protocol.errors import ErrorCode
from protocol.messages.configs import (
    DELETE,
    SET,
    AlterableConfig,
    AlterableTopicConfigs,
    DescribeConfigsRequest,
    DescribeConfigsResponse,
    DescribedTopicConfigs,
    DescribeLogDirsRequest,
    DescribeLogDirsResponse,
    IncrementalAlterConfigsRequest,
    IncrementalAlterConfigsResponse,
)
from protocol.messages.records import (
    DeleteRecordsPartition,
    DeleteRecordsRequest,
    DeleteRecordsResponse,
    DeleteRecordsTopic,
)
from protocol.subscription import TopicPartition


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

        -1 deletes all that is acknowledged, up to the first record of a transaction that is open. An offset below the
        beginning changes nothing. Groups that had not read the deleted records go where their ``auto_offset_reset`` says.
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
        topics = tuple(DeleteRecordsTopic(topic, tuple(wanted)) for topic, wanted in by_topic.items())
        request = DeleteRecordsRequest(topics, deadline.remaining_ms())
        response = await self._cluster.call(request, DeleteRecordsResponse, deadline=deadline)
        results = {
            TopicPartition(topic.name, deleted.partition_index): deleted
            for topic in response.topics
            for deleted in topic.partitions
        }
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
        response = await self._cluster.call(request, DescribeLogDirsResponse, deadline=deadline)
        raise_error_codes((topic.name, topic.error_code, topic.error_message) for topic in response.results)
        return {
            TopicPartition(topic.name, each.partition_index): LogDescription(
                each.log_start_offset,
                each.high_watermark,
                each.size,
                each.segments,
                each.dirty_percent,
                each.error_message or each.fault,
            )
            for topic in response.results
            for each in topic.partitions
        }

    async def _topic_configs(self, names: tuple[str, ...], timeout_ms: int) -> dict[str, DescribedTopicConfigs]:
        deadline = self._deadline(timeout_ms)
        response = await self._cluster.call(DescribeConfigsRequest(names), DescribeConfigsResponse, deadline=deadline)
        return {topic.name: topic for topic in response.results}


def config_text(value: object) -> str:
    """The value of a setting as it travels."""
    return str(value).lower() if isinstance(value, bool) else str(value)
