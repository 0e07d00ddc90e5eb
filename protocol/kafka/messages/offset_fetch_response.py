"""Kafka's ``OffsetFetchResponse``, made from ``schemas/OffsetFetchResponse.json`` by
``tests/protocol/kafka/message_modules.py``; not to be edited by hand."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import ClassVar

from protocol.kafka.schema import INT16, INT32, INT64, STRING, UUID, Array, Field, Message, Structure


@dataclass(slots=True)
class OffsetFetchResponsePartition(Structure):
    """A part of ``OffsetFetchResponse``; the schema says what each field means."""

    FIELDS: ClassVar[tuple[Field, ...]] = (
        Field("partition_index", INT32, "0-7"),
        Field("committed_offset", INT64, "0-7"),
        Field("committed_leader_epoch", INT32, "5-7", ignorable=True),
        Field("metadata", STRING, "0-7", nullable="0-7"),
        Field("error_code", INT16, "0-7"),
    )

    partition_index: int = 0
    committed_offset: int = 0
    committed_leader_epoch: int = -1
    metadata: str | None = ""
    error_code: int = 0


@dataclass(slots=True)
class OffsetFetchResponseTopic(Structure):
    """A part of ``OffsetFetchResponse``; the schema says what each field means."""

    FIELDS: ClassVar[tuple[Field, ...]] = (
        Field("name", STRING, "0-7"),
        Field("partitions", Array(OffsetFetchResponsePartition), "0-7"),
    )

    name: str = ""
    partitions: list[OffsetFetchResponsePartition] = field(default_factory=list)


@dataclass(slots=True)
class OffsetFetchResponsePartitions(Structure):
    """A part of ``OffsetFetchResponse``; the schema says what each field means."""

    FIELDS: ClassVar[tuple[Field, ...]] = (
        Field("partition_index", INT32, "8+"),
        Field("committed_offset", INT64, "8+"),
        Field("committed_leader_epoch", INT32, "8+", ignorable=True),
        Field("metadata", STRING, "8+", nullable="8+"),
        Field("error_code", INT16, "8+"),
    )

    partition_index: int = 0
    committed_offset: int = 0
    committed_leader_epoch: int = -1
    metadata: str | None = ""
    error_code: int = 0


@dataclass(slots=True)
class OffsetFetchResponseTopics(Structure):
    """A part of ``OffsetFetchResponse``; the schema says what each field means."""

    FIELDS: ClassVar[tuple[Field, ...]] = (
        Field("name", STRING, "8-9", ignorable=True),
        Field("topic_id", UUID, "10+", ignorable=True),
        Field("partitions", Array(OffsetFetchResponsePartitions), "8+"),
    )

    name: str = ""
    topic_id: bytes = bytes(16)
    partitions: list[OffsetFetchResponsePartitions] = field(default_factory=list)


@dataclass(slots=True)
class OffsetFetchResponseGroup(Structure):
    """A part of ``OffsetFetchResponse``; the schema says what each field means."""

    FIELDS: ClassVar[tuple[Field, ...]] = (
        Field("group_id", STRING, "8+"),
        Field("topics", Array(OffsetFetchResponseTopics), "8+"),
        Field("error_code", INT16, "8+"),
    )

    group_id: str = ""
    topics: list[OffsetFetchResponseTopics] = field(default_factory=list)
    error_code: int = 0


@dataclass(slots=True)
class OffsetFetchResponse(Message):
    """The message; the schema says what each field means."""

    API_KEY: ClassVar[int] = 9
    VERSIONS: ClassVar[tuple[int, int]] = (1, 10)
    FLEXIBLE_FROM: ClassVar[int] = 6
    FIELDS: ClassVar[tuple[Field, ...]] = (
        Field("throttle_time_ms", INT32, "3+", ignorable=True),
        Field("topics", Array(OffsetFetchResponseTopic), "0-7"),
        Field("error_code", INT16, "2-7", ignorable=True),
        Field("groups", Array(OffsetFetchResponseGroup), "8+"),
    )

    throttle_time_ms: int = 0
    topics: list[OffsetFetchResponseTopic] = field(default_factory=list)
    error_code: int = 0
    groups: list[OffsetFetchResponseGroup] = field(default_factory=list)
