"""Kafka's ``DeleteTopicsResponse``, made from ``schemas/DeleteTopicsResponse.json`` by
``tests/protocol/kafka/message_modules.py``; not to be edited by hand."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import ClassVar

from protocol.kafka.schema import INT16, INT32, STRING, UUID, Array, Field, Message, Structure


@dataclass(slots=True)
class DeletableTopicResult(Structure):
    """A part of ``DeleteTopicsResponse``; the schema says what each field means."""

    FIELDS: ClassVar[tuple[Field, ...]] = (
        Field("name", STRING, "0+", nullable="6+"),
        Field("topic_id", UUID, "6+", ignorable=True),
        Field("error_code", INT16, "0+"),
        Field("error_message", STRING, "5+", nullable="5+", ignorable=True),
    )

    name: str | None = ""
    topic_id: bytes = bytes(16)
    error_code: int = 0
    error_message: str | None = None


@dataclass(slots=True)
class DeleteTopicsResponse(Message):
    """The message; the schema says what each field means."""

    API_KEY: ClassVar[int] = 20
    VERSIONS: ClassVar[tuple[int, int]] = (1, 6)
    FLEXIBLE_FROM: ClassVar[int] = 4
    FIELDS: ClassVar[tuple[Field, ...]] = (
        Field("throttle_time_ms", INT32, "1+", ignorable=True),
        Field("responses", Array(DeletableTopicResult), "0+"),
    )

    throttle_time_ms: int = 0
    responses: list[DeletableTopicResult] = field(default_factory=list)
