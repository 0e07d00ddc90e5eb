"""Kafka's ``HeartbeatResponse``, made from ``schemas/HeartbeatResponse.json`` by
``tests/protocol/kafka/message_modules.py``; not to be edited by hand."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from protocol.kafka.schema import INT16, INT32, Field, Message


@dataclass(slots=True)
class HeartbeatResponse(Message):
    """The message; the schema says what each field means."""

    API_KEY: ClassVar[int] = 12
    VERSIONS: ClassVar[tuple[int, int]] = (0, 4)
    FLEXIBLE_FROM: ClassVar[int] = 4
    FIELDS: ClassVar[tuple[Field, ...]] = (
        Field("throttle_time_ms", INT32, "1+", ignorable=True),
        Field("error_code", INT16, "0+"),
    )

    throttle_time_ms: int = 0
    error_code: int = 0
