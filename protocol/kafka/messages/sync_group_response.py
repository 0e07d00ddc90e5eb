"""Kafka's ``SyncGroupResponse``, made from ``schemas/SyncGroupResponse.json`` by
``tests/protocol/kafka/message_modules.py``; not to be edited by hand."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from protocol.kafka.schema import BYTES, INT16, INT32, STRING, Field, Message


@dataclass(slots=True)
class SyncGroupResponse(Message):
    """The message; the schema says what each field means."""

    API_KEY: ClassVar[int] = 14
    VERSIONS: ClassVar[tuple[int, int]] = (0, 5)
    FLEXIBLE_FROM: ClassVar[int] = 4
    FIELDS: ClassVar[tuple[Field, ...]] = (
        Field("throttle_time_ms", INT32, "1+", ignorable=True),
        Field("error_code", INT16, "0+"),
        Field("protocol_type", STRING, "5+", nullable="5+", ignorable=True),
        Field("protocol_name", STRING, "5+", nullable="5+", ignorable=True),
        Field("assignment", BYTES, "0+"),
    )

    throttle_time_ms: int = 0
    error_code: int = 0
    protocol_type: str | None = None
    protocol_name: str | None = None
    assignment: bytes = b""
