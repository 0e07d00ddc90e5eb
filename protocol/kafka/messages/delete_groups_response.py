"""Kafka's ``DeleteGroupsResponse``, made from ``schemas/DeleteGroupsResponse.json`` by
``tests/protocol/kafka/message_modules.py``; not to be edited by hand."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import ClassVar

from protocol.kafka.schema import INT16, INT32, STRING, Array, Field, Message, Structure


@dataclass(slots=True)
class DeletableGroupResult(Structure):
    """A part of ``DeleteGroupsResponse``; the schema says what each field means."""

    FIELDS: ClassVar[tuple[Field, ...]] = (
        Field("group_id", STRING, "0+"),
        Field("error_code", INT16, "0+"),
        Field("error_message", STRING, "3+", nullable="3+", ignorable=True),
    )

    group_id: str = ""
    error_code: int = 0
    error_message: str | None = None


@dataclass(slots=True)
class DeleteGroupsResponse(Message):
    """The message; the schema says what each field means."""

    API_KEY: ClassVar[int] = 42
    VERSIONS: ClassVar[tuple[int, int]] = (0, 3)
    FLEXIBLE_FROM: ClassVar[int] = 2
    FIELDS: ClassVar[tuple[Field, ...]] = (
        Field("throttle_time_ms", INT32, "0+"),
        Field("results", Array(DeletableGroupResult), "0+"),
    )

    throttle_time_ms: int = 0
    results: list[DeletableGroupResult] = field(default_factory=list)
