"""Kafka's ``AddOffsetsToTxnResponse``, made from ``schemas/AddOffsetsToTxnResponse.json`` by
``tests/protocol/kafka/message_modules.py``; not to be edited by hand."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from protocol.kafka.schema import INT16, INT32, Field, Message


@dataclass(slots=True)
class AddOffsetsToTxnResponse(Message):
    """The message; the schema says what each field means."""

    API_KEY: ClassVar[int] = 25
    VERSIONS: ClassVar[tuple[int, int]] = (0, 4)
    FLEXIBLE_FROM: ClassVar[int] = 3
    FIELDS: ClassVar[tuple[Field, ...]] = (
        Field("throttle_time_ms", INT32, "0+"),
        Field("error_code", INT16, "0+"),
    )

    throttle_time_ms: int = 0
    error_code: int = 0
