"""Kafka's ``DescribeTopicPartitionsRequest``, made from ``schemas/DescribeTopicPartitionsRequest.json`` by
``tests/protocol/kafka/message_modules.py``; not to be edited by hand."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import ClassVar

from protocol.kafka.schema import INT32, STRING, Array, Field, Message, Structure


@dataclass(slots=True)
class TopicRequest(Structure):
    """A part of ``DescribeTopicPartitionsRequest``; the schema says what each field means."""

    FIELDS: ClassVar[tuple[Field, ...]] = (Field("name", STRING, "0+"),)

    name: str = ""


@dataclass(slots=True)
class Cursor(Structure):
    """A part of ``DescribeTopicPartitionsRequest``; the schema says what each field means."""

    FIELDS: ClassVar[tuple[Field, ...]] = (
        Field("topic_name", STRING, "0+"),
        Field("partition_index", INT32, "0+"),
    )

    topic_name: str = ""
    partition_index: int = 0


@dataclass(slots=True)
class DescribeTopicPartitionsRequest(Message):
    """The message; the schema says what each field means."""

    API_KEY: ClassVar[int] = 75
    VERSIONS: ClassVar[tuple[int, int]] = (0, 0)
    FLEXIBLE_FROM: ClassVar[int] = 0
    FIELDS: ClassVar[tuple[Field, ...]] = (
        Field("topics", Array(TopicRequest), "0+"),
        Field("response_partition_limit", INT32, "0+"),
        Field("cursor", Cursor, "0+", nullable="0+"),
    )

    topics: list[TopicRequest] = field(default_factory=list)
    response_partition_limit: int = 2000
    cursor: Cursor | None = None
