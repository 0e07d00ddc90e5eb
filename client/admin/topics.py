"""The admin's calls about topics."""

from __future__ import annotations

from collections.abc import Mapping

from client.admin.arguments import checked_config, checked_counts, checked_replication_factor, checked_topics
from client.admin.failures import raise_error_codes
from client.admin.topic_configs import TopicConfigCalls, config_text
from client.types.descriptions import PartitionDescription, TopicDescription
from protocol.errors import ErrorCode
from protocol.messages.cluster import TopicMetadata
from protocol.messages.configs import DescribedTopicConfigs
from protocol.messages.topics import (
    CreatableTopic,
    CreatePartitionsRequest,
    CreatePartitionsResponse,
    CreateTopicsRequest,
    CreateTopicsResponse,
    DeleteTopicsRequest,
    DeleteTopicsResponse,
    TopicConfig,
    TopicPartitionCount,
)


class TopicCalls(TopicConfigCalls):
    """Base of ``Admin``: topics come, grow and go."""

    async def create_topics(
        self,
        topics: Mapping[str, int],
        config: Mapping[str, object] | None = None,
        *,
        replication_factor: int = -1,
        timeout_ms: int | None = None,
    ) -> None:
        """Creates topics with a number of partitions each (-1: the daemon's default) and the same ``config``.

        ``replication_factor`` is on how many nodes each partition is kept (-1: the daemon's default); different racks are
        taken while there are enough.

        Raises ``TopicAlreadyExistsError``, ``InvalidTopicError`` (name), ``InvalidPartitionsError``, ``InvalidConfigError``,
        ``InvalidReplicationFactorError`` when fewer nodes live, or can take the partitions, than replicas are asked for.
        The request is sent again when its answer is lost. ``TopicAlreadyExistsError`` may then mean that the first one did
        create the topic: the daemon cannot tell it from another client's, ``describe_topics`` shows what there is.
        """
        deadline = self._deadline(timeout_ms)
        counts = checked_counts("create_topics", topics)
        entries = tuple(TopicConfig(name, config_text(value)) for name, value in checked_config(config).items())
        factor = checked_replication_factor(replication_factor)
        wanted = tuple(CreatableTopic(name, partitions, factor, entries) for name, partitions in counts.items())
        request = CreateTopicsRequest(wanted, deadline.remaining_ms())
        response = await self._cluster.call(request, CreateTopicsResponse, deadline=deadline)
        raise_error_codes((topic.name, topic.error_code, topic.error_message) for topic in response.topics)

    async def delete_topics(self, *names: str, timeout_ms: int | None = None) -> None:
        """Deletes topics with all their records.

        Raises ``UnknownTopicOrPartitionError``, and ``InvalidTopicError`` for internal topics. The request is sent again
        when its answer is lost; ``UnknownTopicOrPartitionError`` may then mean that the first one did delete the topic.
        """
        deadline = self._deadline(timeout_ms)
        request = DeleteTopicsRequest(checked_topics("delete_topics", names), deadline.remaining_ms())
        response = await self._cluster.call(request, DeleteTopicsResponse, deadline=deadline)
        raise_error_codes((topic.name, topic.error_code, topic.error_message) for topic in response.responses)

    async def create_partitions(self, totals: Mapping[str, int], *, timeout_ms: int | None = None) -> None:
        """Grows topics to a total number of partitions each. Keys map to other partitions afterwards.

        Raises ``InvalidPartitionsError`` when a topic has as many or more already, ``UnknownTopicOrPartitionError``. The
        request is sent again when its answer is lost; ``InvalidPartitionsError`` may then mean that the first one did it.
        """
        deadline = self._deadline(timeout_ms)
        counts = checked_counts("create_partitions", totals)
        wanted = tuple(TopicPartitionCount(name, total) for name, total in counts.items())
        request = CreatePartitionsRequest(wanted, deadline.remaining_ms())
        response = await self._cluster.call(request, CreatePartitionsResponse, deadline=deadline)
        raise_error_codes((topic.name, topic.error_code, topic.error_message) for topic in response.results)

    async def list_topics(self, *, include_internal: bool = False, timeout_ms: int | None = None) -> list[str]:
        """The names of all topics, sorted; those of the daemon itself only with ``include_internal``."""
        response = await self._metadata(None, self._deadline(timeout_ms))
        return sorted(topic.name for topic in response.topics if include_internal or not topic.is_internal)

    async def describe_topics(self, *names: str, timeout_ms: int | None = None) -> dict[str, TopicDescription]:
        """Topics by name with their partitions and settings, in the order asked for; without names all but internal ones.

        Raises ``UnknownTopicOrPartitionError`` naming those that do not exist.
        """
        deadline = self._deadline(timeout_ms)
        response = await self._metadata(checked_topics("describe_topics", names) or None, deadline)
        raise_error_codes(
            (topic.name, topic.error_code, _refusal(topic.name, topic.error_code)) for topic in response.topics
        )
        known = {topic.name: topic for topic in response.topics}
        wanted = names or sorted(topic.name for topic in response.topics if not topic.is_internal)
        configs = await self._topic_configs(tuple(wanted), deadline.remaining_ms())
        return {name: _topic_description(known[name], configs.get(name)) for name in wanted}


def _refusal(topic: str, code: int) -> str:
    return f"topic {topic!r} does not exist" if code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION else f"topic {topic!r}"


def _topic_description(topic: TopicMetadata, configs: DescribedTopicConfigs | None) -> TopicDescription:
    partitions = tuple(
        PartitionDescription(
            partition.partition_index,
            partition.leader_id,
            partition.leader_epoch,
            partition.replica_nodes,
            partition.isr_nodes,
        )
        for partition in topic.partitions
    )
    entries = () if configs is None else configs.configs
    return TopicDescription(
        topic.name,
        topic.topic_id,
        topic.is_internal,
        partitions,
        {entry.name: entry.value for entry in entries},
        tuple(entry.name for entry in entries if not entry.is_default),
    )
