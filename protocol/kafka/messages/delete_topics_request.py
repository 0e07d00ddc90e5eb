"""Kafka's ``DeleteTopicsRequest``, made from ``schemas/DeleteTopicsRequest.json`` by
``tests/protocol/kafka/message_modules.py``; not to be edited by hand."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import ClassVar

from protocol.kafka.schema import INT32, STRING, UUID, Array, Field, Message, Structure


@dataclass(slots=True)
class DeleteTopicState(Structure):
    """A part of ``DeleteTopicsRequest``; the schema says what each field means."""

    FIELDS: ClassVar[tuple[Field, ...]] = (
        Field("name", STRING, "6+", nullable="6+"),
        Field("topic_id", UUID, "6+"),
    )

    name: str | None = None
    topic_id: bytes = bytes(16)


@dataclass(slots=True)
class DeleteTopicsRequest(Message):
    """The message; the schema says what each field means."""

    API_KEY: ClassVar[int] = 20
    VERSIONS: ClassVar[tuple[int, int]] = (1, 6)
    FLEXIBLE_FROM: ClassVar[int] = 4
    FIELDS: ClassVar[tuple[Field, ...]] = (
        Field("topics", Array(DeleteTopicState), "6+"),
        Field("topic_names", Array(STRING), "0-5", ignorable=True),
        Field("timeout_ms", INT32, "0+"),
    )

    topics: list[DeleteTopicState] = field(default_factory=list)
    topic_names: list[str] = field(default_factory=list)
    timeout_ms: int = 0
