"""Messages that change topics: CreateTopics, DeleteTopics, CreatePartitions."""

from __future__ import annotations

from dataclasses import dataclass

from protocol.codec import Int16, Int32
from protocol.messages.api import ApiKey, Request, Response, register


@dataclass(frozen=True, slots=True)
class TopicConfig:
    """One setting of a topic, both sides as text."""

    name: str
    value: str


@dataclass(frozen=True, slots=True)
class CreatableTopic:
    """A topic to create; ``num_partitions`` -1 takes the daemon's default."""

    name: str
    num_partitions: Int32 = -1
    replication_factor: Int16 = -1
    configs: tuple[TopicConfig, ...] = ()


@dataclass(frozen=True, slots=True)
class CreatedTopic:
    """What became of one topic."""

    name: str
    error_code: Int16
    error_message: str = ""
    topic_id: str = ""
    num_partitions: Int32 = -1


@dataclass(frozen=True, slots=True)
class CreateTopicsResponse(Response):
    """One entry a topic asked for, in order."""

    topics: tuple[CreatedTopic, ...]


@register
@dataclass(frozen=True, slots=True)
class CreateTopicsRequest(Request):
    """Creates topics, each on its own: one that is refused does not stop the others."""

    api_key = ApiKey.CREATE_TOPICS
    response = CreateTopicsResponse

    topics: tuple[CreatableTopic, ...]
    timeout_ms: Int32 = 30_000
    validate_only: bool = False


@dataclass(frozen=True, slots=True)
class TopicResult:
    """What became of one topic."""

    name: str
    error_code: Int16
    error_message: str = ""


@dataclass(frozen=True, slots=True)
class DeleteTopicsResponse(Response):
    """One entry a topic asked for, in order."""

    responses: tuple[TopicResult, ...]


@register
@dataclass(frozen=True, slots=True)
class DeleteTopicsRequest(Request):
    """Deletes topics with all their records."""

    api_key = ApiKey.DELETE_TOPICS
    response = DeleteTopicsResponse

    topic_names: tuple[str, ...]
    timeout_ms: Int32 = 30_000


@dataclass(frozen=True, slots=True)
class TopicPartitionCount:
    """The number of partitions a topic shall have in all."""

    name: str
    count: Int32


@dataclass(frozen=True, slots=True)
class CreatePartitionsResponse(Response):
    """One entry a topic asked for, in order."""

    results: tuple[TopicResult, ...]


@register
@dataclass(frozen=True, slots=True)
class CreatePartitionsRequest(Request):
    """Adds partitions to topics. Keys map to other partitions afterwards; records stay where they are."""

    api_key = ApiKey.CREATE_PARTITIONS
    response = CreatePartitionsResponse

    topics: tuple[TopicPartitionCount, ...]
    timeout_ms: Int32 = 30_000
    validate_only: bool = False
