"""Kafka's ``OffsetCommitRequest``, made from ``schemas/OffsetCommitRequest.json`` by
``tests/protocol/kafka/message_modules.py``; not to be edited by hand."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import ClassVar

from protocol.kafka.schema import INT32, INT64, STRING, UUID, Array, Field, Message, Structure


@dataclass(slots=True)
class OffsetCommitRequestPartition(Structure):
    """A part of ``OffsetCommitRequest``; the schema says what each field means."""

    FIELDS: ClassVar[tuple[Field, ...]] = (
        Field("partition_index", INT32, "0+"),
        Field("committed_offset", INT64, "0+"),
        Field("committed_leader_epoch", INT32, "6+", ignorable=True),
        Field("committed_metadata", STRING, "0+", nullable="0+"),
    )

    partition_index: int = 0
    committed_offset: int = 0
    committed_leader_epoch: int = -1
    committed_metadata: str | None = ""


@dataclass(slots=True)
class OffsetCommitRequestTopic(Structure):
    """A part of ``OffsetCommitRequest``; the schema says what each field means."""

    FIELDS: ClassVar[tuple[Field, ...]] = (
        Field("name", STRING, "0-9", ignorable=True),
        Field("topic_id", UUID, "10+", ignorable=True),
        Field("partitions", Array(OffsetCommitRequestPartition), "0+"),
    )

    name: str = ""
    topic_id: bytes = bytes(16)
    partitions: list[OffsetCommitRequestPartition] = field(default_factory=list)


@dataclass(slots=True)
class OffsetCommitRequest(Message):
    """The message; the schema says what each field means."""

    API_KEY: ClassVar[int] = 8
    VERSIONS: ClassVar[tuple[int, int]] = (2, 10)
    FLEXIBLE_FROM: ClassVar[int] = 8
    FIELDS: ClassVar[tuple[Field, ...]] = (
        Field("group_id", STRING, "0+"),
        Field("generation_id_or_member_epoch", INT32, "1+", ignorable=True),
        Field("member_id", STRING, "1+", ignorable=True),
        Field("group_instance_id", STRING, "7+", nullable="7+"),
        Field("retention_time_ms", INT64, "2-4", ignorable=True),
        Field("topics", Array(OffsetCommitRequestTopic), "0+"),
    )

    group_id: str = ""
    generation_id_or_member_epoch: int = -1
    member_id: str = ""
    group_instance_id: str | None = None
    retention_time_ms: int = -1
    topics: list[OffsetCommitRequestTopic] = field(default_factory=list)
