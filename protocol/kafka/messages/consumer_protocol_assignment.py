"""Kafka's ``ConsumerProtocolAssignment``, made from ``schemas/ConsumerProtocolAssignment.json`` by
``tests/protocol/kafka/message_modules.py``; not to be edited by hand."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import ClassVar

from protocol.kafka.schema import BYTES, INT32, STRING, Array, Field, Message, Structure


@dataclass(slots=True)
class TopicPartition(Structure):
    """A part of ``ConsumerProtocolAssignment``; the schema says what each field means."""

    FIELDS: ClassVar[tuple[Field, ...]] = (
        Field("topic", STRING, "0+"),
        Field("partitions", Array(INT32), "0+"),
    )

    topic: str = ""
    partitions: list[int] = field(default_factory=list)


@dataclass(slots=True)
class ConsumerProtocolAssignment(Message):
    """The message; the schema says what each field means."""

    VERSIONS: ClassVar[tuple[int, int]] = (0, 3)
    FIELDS: ClassVar[tuple[Field, ...]] = (
        Field("assigned_partitions", Array(TopicPartition), "0+"),
        Field("user_data", BYTES, "0+", nullable="0+"),
    )

    assigned_partitions: list[TopicPartition] = field(default_factory=list)
    user_data: bytes | None = None
