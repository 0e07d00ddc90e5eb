"""Kafka's ``CreatePartitionsRequest``, made from ``schemas/CreatePartitionsRequest.json`` by
``tests/protocol/kafka/message_modules.py``; not to be edited by hand."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import ClassVar

from protocol.kafka.schema import BOOL, INT32, STRING, Array, Field, Message, Structure


@dataclass(slots=True)
class CreatePartitionsAssignment(Structure):
    """A part of ``CreatePartitionsRequest``; the schema says what each field means."""

    FIELDS: ClassVar[tuple[Field, ...]] = (Field("broker_ids", Array(INT32), "0+"),)

    broker_ids: list[int] = field(default_factory=list)


@dataclass(slots=True)
class CreatePartitionsTopic(Structure):
    """A part of ``CreatePartitionsRequest``; the schema says what each field means."""

    FIELDS: ClassVar[tuple[Field, ...]] = (
        Field("name", STRING, "0+"),
        Field("count", INT32, "0+"),
        Field("assignments", Array(CreatePartitionsAssignment), "0+", nullable="0+"),
    )

    name: str = ""
    count: int = 0
    assignments: list[CreatePartitionsAssignment] | None = field(default_factory=list)


@dataclass(slots=True)
class CreatePartitionsRequest(Message):
    """The message; the schema says what each field means."""

    API_KEY: ClassVar[int] = 37
    VERSIONS: ClassVar[tuple[int, int]] = (0, 3)
    FLEXIBLE_FROM: ClassVar[int] = 2
    FIELDS: ClassVar[tuple[Field, ...]] = (
        Field("topics", Array(CreatePartitionsTopic), "0+"),
        Field("timeout_ms", INT32, "0+"),
        Field("validate_only", BOOL, "0+"),
    )

    topics: list[CreatePartitionsTopic] = field(default_factory=list)
    timeout_ms: int = 0
    validate_only: bool = False
