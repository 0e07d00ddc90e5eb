"""Kafka's ``ConsumerProtocolSubscription``, made from ``schemas/ConsumerProtocolSubscription.json`` by
``tests/protocol/kafka/message_modules.py``; not to be edited by hand."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import ClassVar

from protocol.kafka.schema import BYTES, INT32, STRING, Array, Field, Message, Structure


@dataclass(slots=True)
class TopicPartition(Structure):
    """A part of ``ConsumerProtocolSubscription``; the schema says what each field means."""

    FIELDS: ClassVar[tuple[Field, ...]] = (
        Field("topic", STRING, "1+"),
        Field("partitions", Array(INT32), "1+"),
    )

    topic: str = ""
    partitions: list[int] = field(default_factory=list)


@dataclass(slots=True)
class ConsumerProtocolSubscription(Message):
    """The message; the schema says what each field means."""

    VERSIONS: ClassVar[tuple[int, int]] = (0, 3)
    FIELDS: ClassVar[tuple[Field, ...]] = (
        Field("topics", Array(STRING), "0+"),
        Field("user_data", BYTES, "0+", nullable="0+"),
        Field("owned_partitions", Array(TopicPartition), "1+", ignorable=True),
        Field("generation_id", INT32, "2+", ignorable=True),
        Field("rack_id", STRING, "3+", nullable="3+", ignorable=True),
    )

    topics: list[str] = field(default_factory=list)
    user_data: bytes | None = None
    owned_partitions: list[TopicPartition] = field(default_factory=list)
    generation_id: int = -1
    rack_id: str | None = None
