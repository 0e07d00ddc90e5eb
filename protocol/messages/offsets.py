"""Messages about committed offsets: OffsetCommit, OffsetFetch, OffsetDelete."""

from __future__ import annotations

from dataclasses import dataclass

from protocol.codec import Int16, Int32, Int64
from protocol.messages.api import ApiKey, Request, Response, register


@dataclass(frozen=True, slots=True)
class OffsetCommitPartition:
    """The next offset to read of one partition; ``committed_leader_epoch`` -1 when unknown."""

    partition_index: Int32
    committed_offset: Int64
    committed_leader_epoch: Int32 = -1
    committed_metadata: str | None = ""


@dataclass(frozen=True, slots=True)
class OffsetCommitTopic:
    """Offsets of one topic. With a ``topic_id`` they are stored only while the topic of that name has it."""

    name: str
    partitions: tuple[OffsetCommitPartition, ...]
    topic_id: str = ""


@dataclass(frozen=True, slots=True)
class CommittedPartition:
    """Whether one offset is stored. ``error_message`` is for what is wrong with this partition alone."""

    partition_index: Int32
    error_code: Int16
    error_message: str = ""


@dataclass(frozen=True, slots=True)
class CommittedTopic:
    """Results for one topic."""

    name: str
    partitions: tuple[CommittedPartition, ...]


@dataclass(frozen=True, slots=True)
class OffsetCommitResponse(Response):
    """One entry a partition, in order. ``error_message`` explains the first error, if there are any.

    What refuses the whole request, such as an old generation, is the error of every partition and explained here only. Of
    errors of partitions, which refuse these alone, the first 100 bring their own explanation.
    """

    topics: tuple[CommittedTopic, ...]
    error_message: str = ""


@register
@dataclass(frozen=True, slots=True)
class OffsetCommitRequest(Request):
    """Stores offsets for a group. Members give generation and member id; others give -1 and "" and the group is empty."""

    api_key = ApiKey.OFFSET_COMMIT
    response = OffsetCommitResponse

    group_id: str
    generation_id: Int32
    member_id: str
    group_instance_id: str | None
    topics: tuple[OffsetCommitTopic, ...]


@dataclass(frozen=True, slots=True)
class OffsetFetchTopic:
    """Partitions of one topic."""

    name: str
    partition_indexes: tuple[Int32, ...]


@dataclass(frozen=True, slots=True)
class FetchedOffset:
    """A committed offset; -1 when there is none."""

    partition_index: Int32
    committed_offset: Int64
    committed_leader_epoch: Int32 = -1
    metadata: str = ""
    error_code: Int16 = 0


@dataclass(frozen=True, slots=True)
class FetchedOffsetTopic:
    """Committed offsets of one topic."""

    name: str
    partitions: tuple[FetchedOffset, ...]


@dataclass(frozen=True, slots=True)
class OffsetFetchResponse(Response):
    """Committed offsets of a group. A group that does not exist has none, which is no error."""

    error_code: Int16
    topics: tuple[FetchedOffsetTopic, ...] = ()
    error_message: str = ""


@register
@dataclass(frozen=True, slots=True)
class OffsetFetchRequest(Request):
    """Asks for committed offsets; ``topics=None`` for all of the group (KIP-88)."""

    api_key = ApiKey.OFFSET_FETCH
    response = OffsetFetchResponse

    group_id: str
    topics: tuple[OffsetFetchTopic, ...] | None
    require_stable: bool = False


@dataclass(frozen=True, slots=True)
class OffsetDeleteTopic:
    """Partitions of one topic."""

    name: str
    partition_indexes: tuple[Int32, ...]


@dataclass(frozen=True, slots=True)
class DeletedOffset:
    """Whether one committed offset is gone; GROUP_SUBSCRIBED_TO_TOPIC while a member subscribes to the topic."""

    partition_index: Int32
    error_code: Int16


@dataclass(frozen=True, slots=True)
class DeletedOffsetTopic:
    """Results for one topic."""

    name: str
    partitions: tuple[DeletedOffset, ...]


@dataclass(frozen=True, slots=True)
class OffsetDeleteResponse(Response):
    """One entry a partition, in order; with an error for the whole group there are none."""

    error_code: Int16
    topics: tuple[DeletedOffsetTopic, ...] = ()
    error_message: str = ""


@register
@dataclass(frozen=True, slots=True)
class OffsetDeleteRequest(Request):
    """Erases committed offsets of a group; refused for topics that a member subscribes to (KIP-496)."""

    api_key = ApiKey.OFFSET_DELETE
    response = OffsetDeleteResponse

    group_id: str
    topics: tuple[OffsetDeleteTopic, ...]
