"""Kafka's ``JoinGroupRequest``, made from ``schemas/JoinGroupRequest.json`` by
``tests/protocol/kafka/message_modules.py``; not to be edited by hand."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import ClassVar

from protocol.kafka.schema import BYTES, INT32, STRING, Array, Field, Message, Structure


@dataclass(slots=True)
class JoinGroupRequestProtocol(Structure):
    """A part of ``JoinGroupRequest``; the schema says what each field means."""

    FIELDS: ClassVar[tuple[Field, ...]] = (
        Field("name", STRING, "0+"),
        Field("metadata", BYTES, "0+"),
    )

    name: str = ""
    metadata: bytes = b""


@dataclass(slots=True)
class JoinGroupRequest(Message):
    """The message; the schema says what each field means."""

    API_KEY: ClassVar[int] = 11
    VERSIONS: ClassVar[tuple[int, int]] = (0, 9)
    FLEXIBLE_FROM: ClassVar[int] = 6
    FIELDS: ClassVar[tuple[Field, ...]] = (
        Field("group_id", STRING, "0+"),
        Field("session_timeout_ms", INT32, "0+"),
        Field("rebalance_timeout_ms", INT32, "1+", ignorable=True),
        Field("member_id", STRING, "0+"),
        Field("group_instance_id", STRING, "5+", nullable="5+"),
        Field("protocol_type", STRING, "0+"),
        Field("protocols", Array(JoinGroupRequestProtocol), "0+"),
        Field("reason", STRING, "8+", nullable="8+", ignorable=True),
    )

    group_id: str = ""
    session_timeout_ms: int = 0
    rebalance_timeout_ms: int = -1
    member_id: str = ""
    group_instance_id: str | None = None
    protocol_type: str = ""
    protocols: list[JoinGroupRequestProtocol] = field(default_factory=list)
    reason: str | None = None
