"""Kafka's ``ProduceResponse``, made from ``schemas/ProduceResponse.json`` by
``tests/protocol/kafka/message_modules.py``; not to be edited by hand."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import ClassVar

from protocol.kafka.schema import INT16, INT32, INT64, STRING, UUID, Array, Field, Message, Structure


@dataclass(slots=True)
class BatchIndexAndErrorMessage(Structure):
    """A part of ``ProduceResponse``; the schema says what each field means."""

    FIELDS: ClassVar[tuple[Field, ...]] = (
        Field("batch_index", INT32, "8+"),
        Field("batch_index_error_message", STRING, "8+", nullable="8+"),
    )

    batch_index: int = 0
    batch_index_error_message: str | None = None


@dataclass(slots=True)
class LeaderIdAndEpoch(Structure):
    """A part of ``ProduceResponse``; the schema says what each field means."""

    FIELDS: ClassVar[tuple[Field, ...]] = (
        Field("leader_id", INT32, "10+"),
        Field("leader_epoch", INT32, "10+"),
    )

    leader_id: int = -1
    leader_epoch: int = -1


@dataclass(slots=True)
class PartitionProduceResponse(Structure):
    """A part of ``ProduceResponse``; the schema says what each field means."""

    FIELDS: ClassVar[tuple[Field, ...]] = (
        Field("index", INT32, "0+"),
        Field("error_code", INT16, "0+"),
        Field("base_offset", INT64, "0+"),
        Field("log_append_time_ms", INT64, "2+", ignorable=True),
        Field("log_start_offset", INT64, "5+", ignorable=True),
        Field("record_errors", Array(BatchIndexAndErrorMessage), "8+", ignorable=True),
        Field("error_message", STRING, "8+", nullable="8+", ignorable=True),
        Field("current_leader", LeaderIdAndEpoch, "10+", tagged="10+", tag=0),
    )

    index: int = 0
    error_code: int = 0
    base_offset: int = 0
    log_append_time_ms: int = -1
    log_start_offset: int = -1
    record_errors: list[BatchIndexAndErrorMessage] = field(default_factory=list)
    error_message: str | None = None
    current_leader: LeaderIdAndEpoch | None = None


@dataclass(slots=True)
class TopicProduceResponse(Structure):
    """A part of ``ProduceResponse``; the schema says what each field means."""

    FIELDS: ClassVar[tuple[Field, ...]] = (
        Field("name", STRING, "0-12", ignorable=True),
        Field("topic_id", UUID, "13+", ignorable=True),
        Field("partition_responses", Array(PartitionProduceResponse), "0+"),
    )

    name: str = ""
    topic_id: bytes = bytes(16)
    partition_responses: list[PartitionProduceResponse] = field(default_factory=list)


@dataclass(slots=True)
class NodeEndpoint(Structure):
    """A part of ``ProduceResponse``; the schema says what each field means."""

    FIELDS: ClassVar[tuple[Field, ...]] = (
        Field("node_id", INT32, "10+"),
        Field("host", STRING, "10+"),
        Field("port", INT32, "10+"),
        Field("rack", STRING, "10+", nullable="10+"),
    )

    node_id: int = 0
    host: str = ""
    port: int = 0
    rack: str | None = None


@dataclass(slots=True)
class ProduceResponse(Message):
    """The message; the schema says what each field means."""

    API_KEY: ClassVar[int] = 0
    VERSIONS: ClassVar[tuple[int, int]] = (3, 13)
    FLEXIBLE_FROM: ClassVar[int] = 9
    FIELDS: ClassVar[tuple[Field, ...]] = (
        Field("responses", Array(TopicProduceResponse), "0+"),
        Field("throttle_time_ms", INT32, "1+", ignorable=True),
        Field("node_endpoints", Array(NodeEndpoint), "10+", tagged="10+", tag=0),
    )

    responses: list[TopicProduceResponse] = field(default_factory=list)
    throttle_time_ms: int = 0
    node_endpoints: list[NodeEndpoint] = field(default_factory=list)
