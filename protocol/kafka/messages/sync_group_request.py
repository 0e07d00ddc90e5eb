"""Kafka's ``SyncGroupRequest``, made from ``schemas/SyncGroupRequest.json`` by
``tests/protocol/kafka/message_modules.py``; not to be edited by hand."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import ClassVar

from protocol.kafka.schema import BYTES, INT32, STRING, Array, Field, Message, Structure


@dataclass(slots=True)
class SyncGroupRequestAssignment(Structure):
    """A part of ``SyncGroupRequest``; the schema says what each field means."""

    FIELDS: ClassVar[tuple[Field, ...]] = (
        Field("member_id", STRING, "0+"),
        Field("assignment", BYTES, "0+"),
    )

    member_id: str = ""
    assignment: bytes = b""


@dataclass(slots=True)
class SyncGroupRequest(Message):
    """The message; the schema says what each field means."""

    API_KEY: ClassVar[int] = 14
    VERSIONS: ClassVar[tuple[int, int]] = (0, 5)
    FLEXIBLE_FROM: ClassVar[int] = 4
    FIELDS: ClassVar[tuple[Field, ...]] = (
        Field("group_id", STRING, "0+"),
        Field("generation_id", INT32, "0+"),
        Field("member_id", STRING, "0+"),
        Field("group_instance_id", STRING, "3+", nullable="3+"),
        Field("protocol_type", STRING, "5+", nullable="5+", ignorable=True),
        Field("protocol_name", STRING, "5+", nullable="5+", ignorable=True),
        Field("assignments", Array(SyncGroupRequestAssignment), "0+"),
    )

    group_id: str = ""
    generation_id: int = 0
    member_id: str = ""
    group_instance_id: str | None = None
    protocol_type: str | None = None
    protocol_name: str | None = None
    assignments: list[SyncGroupRequestAssignment] = field(default_factory=list)
