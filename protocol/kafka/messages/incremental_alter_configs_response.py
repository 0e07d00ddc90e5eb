"""Kafka's ``IncrementalAlterConfigsResponse``, made from ``schemas/IncrementalAlterConfigsResponse.json`` by
``tests/protocol/kafka/message_modules.py``; not to be edited by hand."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import ClassVar

from protocol.kafka.schema import INT8, INT16, INT32, STRING, Array, Field, Message, Structure


@dataclass(slots=True)
class AlterConfigsResourceResponse(Structure):
    """A part of ``IncrementalAlterConfigsResponse``; the schema says what each field means."""

    FIELDS: ClassVar[tuple[Field, ...]] = (
        Field("error_code", INT16, "0+"),
        Field("error_message", STRING, "0+", nullable="0+"),
        Field("resource_type", INT8, "0+"),
        Field("resource_name", STRING, "0+"),
    )

    error_code: int = 0
    error_message: str | None = ""
    resource_type: int = 0
    resource_name: str = ""


@dataclass(slots=True)
class IncrementalAlterConfigsResponse(Message):
    """The message; the schema says what each field means."""

    API_KEY: ClassVar[int] = 44
    VERSIONS: ClassVar[tuple[int, int]] = (0, 1)
    FLEXIBLE_FROM: ClassVar[int] = 1
    FIELDS: ClassVar[tuple[Field, ...]] = (
        Field("throttle_time_ms", INT32, "0+"),
        Field("responses", Array(AlterConfigsResourceResponse), "0+"),
    )

    throttle_time_ms: int = 0
    responses: list[AlterConfigsResourceResponse] = field(default_factory=list)
