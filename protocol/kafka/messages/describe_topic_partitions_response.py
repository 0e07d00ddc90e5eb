"""Kafka's ``DescribeTopicPartitionsResponse``, made from ``schemas/DescribeTopicPartitionsResponse.json`` by
``tests/protocol/kafka/message_modules.py``; not to be edited by hand."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import ClassVar

from protocol.kafka.schema import BOOL, INT16, INT32, STRING, UUID, Array, Field, Message, Structure


@dataclass(slots=True)
class DescribeTopicPartitionsResponsePartition(Structure):
    """A part of ``DescribeTopicPartitionsResponse``; the schema says what each field means."""

    FIELDS: ClassVar[tuple[Field, ...]] = (
        Field("error_code", INT16, "0+"),
        Field("partition_index", INT32, "0+"),
        Field("leader_id", INT32, "0+"),
        Field("leader_epoch", INT32, "0+", ignorable=True),
        Field("replica_nodes", Array(INT32), "0+"),
        Field("isr_nodes", Array(INT32), "0+"),
        Field("eligible_leader_replicas", Array(INT32), "0+", nullable="0+"),
        Field("last_known_elr", Array(INT32), "0+", nullable="0+"),
        Field("offline_replicas", Array(INT32), "0+", ignorable=True),
    )

    error_code: int = 0
    partition_index: int = 0
    leader_id: int = 0
    leader_epoch: int = -1
    replica_nodes: list[int] = field(default_factory=list)
    isr_nodes: list[int] = field(default_factory=list)
    eligible_leader_replicas: list[int] | None = None
    last_known_elr: list[int] | None = None
    offline_replicas: list[int] = field(default_factory=list)


@dataclass(slots=True)
class DescribeTopicPartitionsResponseTopic(Structure):
    """A part of ``DescribeTopicPartitionsResponse``; the schema says what each field means."""

    FIELDS: ClassVar[tuple[Field, ...]] = (
        Field("error_code", INT16, "0+"),
        Field("name", STRING, "0+", nullable="0+"),
        Field("topic_id", UUID, "0+", ignorable=True),
        Field("is_internal", BOOL, "0+", ignorable=True),
        Field("partitions", Array(DescribeTopicPartitionsResponsePartition), "0+"),
        Field("topic_authorized_operations", INT32, "0+"),
    )

    error_code: int = 0
    name: str | None = ""
    topic_id: bytes = bytes(16)
    is_internal: bool = False
    partitions: list[DescribeTopicPartitionsResponsePartition] = field(default_factory=list)
    topic_authorized_operations: int = -2147483648


@dataclass(slots=True)
class Cursor(Structure):
    """A part of ``DescribeTopicPartitionsResponse``; the schema says what each field means."""

    FIELDS: ClassVar[tuple[Field, ...]] = (
        Field("topic_name", STRING, "0+"),
        Field("partition_index", INT32, "0+"),
    )

    topic_name: str = ""
    partition_index: int = 0


@dataclass(slots=True)
class DescribeTopicPartitionsResponse(Message):
    """The message; the schema says what each field means."""

    API_KEY: ClassVar[int] = 75
    VERSIONS: ClassVar[tuple[int, int]] = (0, 0)
    FLEXIBLE_FROM: ClassVar[int] = 0
    FIELDS: ClassVar[tuple[Field, ...]] = (
        Field("throttle_time_ms", INT32, "0+", ignorable=True),
        Field("topics", Array(DescribeTopicPartitionsResponseTopic), "0+"),
        Field("next_cursor", Cursor, "0+", nullable="0+"),
    )

    throttle_time_ms: int = 0
    topics: list[DescribeTopicPartitionsResponseTopic] = field(default_factory=list)
    next_cursor: Cursor | None = None
