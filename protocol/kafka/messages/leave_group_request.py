"""Kafka's ``LeaveGroupRequest``, made from ``schemas/LeaveGroupRequest.json`` by
``tests/protocol/kafka/message_modules.py``; not to be edited by hand."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import ClassVar

from protocol.kafka.schema import STRING, Array, Field, Message, Structure


@dataclass(slots=True)
class MemberIdentity(Structure):
    """A part of ``LeaveGroupRequest``; the schema says what each field means."""

    FIELDS: ClassVar[tuple[Field, ...]] = (
        Field("member_id", STRING, "3+"),
        Field("group_instance_id", STRING, "3+", nullable="3+"),
        Field("reason", STRING, "5+", nullable="5+", ignorable=True),
    )

    member_id: str = ""
    group_instance_id: str | None = None
    reason: str | None = None


@dataclass(slots=True)
class LeaveGroupRequest(Message):
    """The message; the schema says what each field means."""

    API_KEY: ClassVar[int] = 13
    VERSIONS: ClassVar[tuple[int, int]] = (0, 5)
    FLEXIBLE_FROM: ClassVar[int] = 4
    FIELDS: ClassVar[tuple[Field, ...]] = (
        Field("group_id", STRING, "0+"),
        Field("member_id", STRING, "0-2"),
        Field("members", Array(MemberIdentity), "3+"),
    )

    group_id: str = ""
    member_id: str = ""
    members: list[MemberIdentity] = field(default_factory=list)
