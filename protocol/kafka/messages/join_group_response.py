"""Kafka's ``JoinGroupResponse``, made from ``schemas/JoinGroupResponse.json`` by
``tests/protocol/kafka/message_modules.py``; not to be edited by hand."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import ClassVar

from protocol.kafka.schema import BOOL, BYTES, INT16, INT32, STRING, Array, Field, Message, Structure


@dataclass(slots=True)
class JoinGroupResponseMember(Structure):
    """A part of ``JoinGroupResponse``; the schema says what each field means."""

    FIELDS: ClassVar[tuple[Field, ...]] = (
        Field("member_id", STRING, "0+"),
        Field("group_instance_id", STRING, "5+", nullable="5+", ignorable=True),
        Field("metadata", BYTES, "0+"),
    )

    member_id: str = ""
    group_instance_id: str | None = None
    metadata: bytes = b""


@dataclass(slots=True)
class JoinGroupResponse(Message):
    """The message; the schema says what each field means."""

    API_KEY: ClassVar[int] = 11
    VERSIONS: ClassVar[tuple[int, int]] = (0, 9)
    FLEXIBLE_FROM: ClassVar[int] = 6
    FIELDS: ClassVar[tuple[Field, ...]] = (
        Field("throttle_time_ms", INT32, "2+", ignorable=True),
        Field("error_code", INT16, "0+"),
        Field("generation_id", INT32, "0+"),
        Field("protocol_type", STRING, "7+", nullable="7+", ignorable=True),
        Field("protocol_name", STRING, "0+", nullable="7+"),
        Field("leader", STRING, "0+"),
        Field("skip_assignment", BOOL, "9+"),
        Field("member_id", STRING, "0+"),
        Field("members", Array(JoinGroupResponseMember), "0+"),
    )

    throttle_time_ms: int = 0
    error_code: int = 0
    generation_id: int = -1
    protocol_type: str | None = None
    protocol_name: str | None = ""
    leader: str = ""
    skip_assignment: bool = False
    member_id: str = ""
    members: list[JoinGroupResponseMember] = field(default_factory=list)
