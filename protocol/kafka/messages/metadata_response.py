"""Kafka's ``MetadataResponse``, made from ``schemas/MetadataResponse.json`` by
``tests/protocol/kafka/message_modules.py``; not to be edited by hand."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import ClassVar

from protocol.kafka.schema import BOOL, INT16, INT32, STRING, UUID, Array, Field, Message, Structure


@dataclass(slots=True)
class MetadataResponseBroker(Structure):
    """A part of ``MetadataResponse``; the schema says what each field means."""

    FIELDS: ClassVar[tuple[Field, ...]] = (
        Field("node_id", INT32, "0+"),
        Field("host", STRING, "0+"),
        Field("port", INT32, "0+"),
        Field("rack", STRING, "1+", nullable="1+", ignorable=True),
    )

    node_id: int = 0
    host: str = ""
    port: int = 0
    rack: str | None = None


@dataclass(slots=True)
class MetadataResponsePartition(Structure):
    """A part of ``MetadataResponse``; the schema says what each field means."""

    FIELDS: ClassVar[tuple[Field, ...]] = (
        Field("error_code", INT16, "0+"),
        Field("partition_index", INT32, "0+"),
        Field("leader_id", INT32, "0+"),
        Field("leader_epoch", INT32, "7+", ignorable=True),
        Field("replica_nodes", Array(INT32), "0+"),
        Field("isr_nodes", Array(INT32), "0+"),
        Field("offline_replicas", Array(INT32), "5+", ignorable=True),
    )

    error_code: int = 0
    partition_index: int = 0
    leader_id: int = 0
    leader_epoch: int = -1
    replica_nodes: list[int] = field(default_factory=list)
    isr_nodes: list[int] = field(default_factory=list)
    offline_replicas: list[int] = field(default_factory=list)


@dataclass(slots=True)
class MetadataResponseTopic(Structure):
    """A part of ``MetadataResponse``; the schema says what each field means."""

    FIELDS: ClassVar[tuple[Field, ...]] = (
        Field("error_code", INT16, "0+"),
        Field("name", STRING, "0+", nullable="12+"),
        Field("topic_id", UUID, "10+", ignorable=True),
        Field("is_internal", BOOL, "1+", ignorable=True),
        Field("partitions", Array(MetadataResponsePartition), "0+"),
        Field("topic_authorized_operations", INT32, "8+"),
    )

    error_code: int = 0
    name: str | None = ""
    topic_id: bytes = bytes(16)
    is_internal: bool = False
    partitions: list[MetadataResponsePartition] = field(default_factory=list)
    topic_authorized_operations: int = -2147483648


@dataclass(slots=True)
class MetadataResponse(Message):
    """The message; the schema says what each field means."""

    API_KEY: ClassVar[int] = 3
    VERSIONS: ClassVar[tuple[int, int]] = (0, 13)
    FLEXIBLE_FROM: ClassVar[int] = 9
    FIELDS: ClassVar[tuple[Field, ...]] = (
        Field("throttle_time_ms", INT32, "3+", ignorable=True),
        Field("brokers", Array(MetadataResponseBroker), "0+"),
        Field("cluster_id", STRING, "2+", nullable="2+", ignorable=True),
        Field("controller_id", INT32, "1+", ignorable=True),
        Field("topics", Array(MetadataResponseTopic), "0+"),
        Field("cluster_authorized_operations", INT32, "8-10"),
        Field("error_code", INT16, "13+", ignorable=True),
    )

    throttle_time_ms: int = 0
    brokers: list[MetadataResponseBroker] = field(default_factory=list)
    cluster_id: str | None = None
    controller_id: int = -1
    topics: list[MetadataResponseTopic] = field(default_factory=list)
    cluster_authorized_operations: int = -2147483648
    error_code: int = 0
