"""Kafka's ``DescribeProducersResponse``, made from ``schemas/DescribeProducersResponse.json`` by
``tests/protocol/kafka/message_modules.py``; not to be edited by hand."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import ClassVar

from protocol.kafka.schema import INT16, INT32, INT64, STRING, Array, Field, Message, Structure


@dataclass(slots=True)
class ProducerState(Structure):
    """A part of ``DescribeProducersResponse``; the schema says what each field means."""

    FIELDS: ClassVar[tuple[Field, ...]] = (
        Field("producer_id", INT64, "0+"),
        Field("producer_epoch", INT32, "0+"),
        Field("last_sequence", INT32, "0+"),
        Field("last_timestamp", INT64, "0+"),
        Field("coordinator_epoch", INT32, "0+"),
        Field("current_txn_start_offset", INT64, "0+"),
    )

    producer_id: int = 0
    producer_epoch: int = 0
    last_sequence: int = -1
    last_timestamp: int = -1
    coordinator_epoch: int = 0
    current_txn_start_offset: int = -1


@dataclass(slots=True)
class PartitionResponse(Structure):
    """A part of ``DescribeProducersResponse``; the schema says what each field means."""

    FIELDS: ClassVar[tuple[Field, ...]] = (
        Field("partition_index", INT32, "0+"),
        Field("error_code", INT16, "0+"),
        Field("error_message", STRING, "0+", nullable="0+"),
        Field("active_producers", Array(ProducerState), "0+"),
    )

    partition_index: int = 0
    error_code: int = 0
    error_message: str | None = None
    active_producers: list[ProducerState] = field(default_factory=list)


@dataclass(slots=True)
class TopicResponse(Structure):
    """A part of ``DescribeProducersResponse``; the schema says what each field means."""

    FIELDS: ClassVar[tuple[Field, ...]] = (
        Field("name", STRING, "0+"),
        Field("partitions", Array(PartitionResponse), "0+"),
    )

    name: str = ""
    partitions: list[PartitionResponse] = field(default_factory=list)


@dataclass(slots=True)
class DescribeProducersResponse(Message):
    """The message; the schema says what each field means."""

    API_KEY: ClassVar[int] = 61
    VERSIONS: ClassVar[tuple[int, int]] = (0, 0)
    FLEXIBLE_FROM: ClassVar[int] = 0
    FIELDS: ClassVar[tuple[Field, ...]] = (
        Field("throttle_time_ms", INT32, "0+"),
        Field("topics", Array(TopicResponse), "0+"),
    )

    throttle_time_ms: int = 0
    topics: list[TopicResponse] = field(default_factory=list)
