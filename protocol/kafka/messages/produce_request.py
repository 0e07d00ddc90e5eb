"""Kafka's ``ProduceRequest``, made from ``schemas/ProduceRequest.json`` by
``tests/protocol/kafka/message_modules.py``; not to be edited by hand."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import ClassVar

from protocol.kafka.schema import INT16, INT32, RECORDS, STRING, UUID, Array, Field, Message, Structure


@dataclass(slots=True)
class PartitionProduceData(Structure):
    """A part of ``ProduceRequest``; the schema says what each field means."""

    FIELDS: ClassVar[tuple[Field, ...]] = (
        Field("index", INT32, "0+"),
        Field("records", RECORDS, "0+", nullable="0+"),
    )

    index: int = 0
    records: bytes | None = None


@dataclass(slots=True)
class TopicProduceData(Structure):
    """A part of ``ProduceRequest``; the schema says what each field means."""

    FIELDS: ClassVar[tuple[Field, ...]] = (
        Field("name", STRING, "0-12", ignorable=True),
        Field("topic_id", UUID, "13+", ignorable=True),
        Field("partition_data", Array(PartitionProduceData), "0+"),
    )

    name: str = ""
    topic_id: bytes = bytes(16)
    partition_data: list[PartitionProduceData] = field(default_factory=list)


@dataclass(slots=True)
class ProduceRequest(Message):
    """The message; the schema says what each field means."""

    API_KEY: ClassVar[int] = 0
    VERSIONS: ClassVar[tuple[int, int]] = (3, 13)
    FLEXIBLE_FROM: ClassVar[int] = 9
    FIELDS: ClassVar[tuple[Field, ...]] = (
        Field("transactional_id", STRING, "3+", nullable="3+"),
        Field("acks", INT16, "0+"),
        Field("timeout_ms", INT32, "0+"),
        Field("topic_data", Array(TopicProduceData), "0+"),
    )

    transactional_id: str | None = None
    acks: int = 0
    timeout_ms: int = 0
    topic_data: list[TopicProduceData] = field(default_factory=list)
