"""Kafka's ``OffsetCommitResponse``, made from ``schemas/OffsetCommitResponse.json`` by
``tests/protocol/kafka/message_modules.py``; not to be edited by hand."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import ClassVar

from protocol.kafka.schema import INT16, INT32, STRING, UUID, Array, Field, Message, Structure


@dataclass(slots=True)
class OffsetCommitResponsePartition(Structure):
    """A part of ``OffsetCommitResponse``; the schema says what each field means."""

    FIELDS: ClassVar[tuple[Field, ...]] = (
        Field("partition_index", INT32, "0+"),
        Field("error_code", INT16, "0+"),
    )

    partition_index: int = 0
    error_code: int = 0


@dataclass(slots=True)
class OffsetCommitResponseTopic(Structure):
    """A part of ``OffsetCommitResponse``; the schema says what each field means."""

    FIELDS: ClassVar[tuple[Field, ...]] = (
        Field("name", STRING, "0-9", ignorable=True),
        Field("topic_id", UUID, "10+", ignorable=True),
        Field("partitions", Array(OffsetCommitResponsePartition), "0+"),
    )

    name: str = ""
    topic_id: bytes = bytes(16)
    partitions: list[OffsetCommitResponsePartition] = field(default_factory=list)


@dataclass(slots=True)
class OffsetCommitResponse(Message):
    """The message; the schema says what each field means."""

    API_KEY: ClassVar[int] = 8
    VERSIONS: ClassVar[tuple[int, int]] = (2, 10)
    FLEXIBLE_FROM: ClassVar[int] = 8
    FIELDS: ClassVar[tuple[Field, ...]] = (
        Field("throttle_time_ms", INT32, "3+", ignorable=True),
        Field("topics", Array(OffsetCommitResponseTopic), "0+"),
    )

    throttle_time_ms: int = 0
    topics: list[OffsetCommitResponseTopic] = field(default_factory=list)
