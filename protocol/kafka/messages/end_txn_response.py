"""Kafka's ``EndTxnResponse``, made from ``schemas/EndTxnResponse.json`` by
``tests/protocol/kafka/message_modules.py``; not to be edited by hand."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from protocol.kafka.schema import INT16, INT32, INT64, Field, Message


@dataclass(slots=True)
class EndTxnResponse(Message):
    """The message; the schema says what each field means."""

    API_KEY: ClassVar[int] = 26
    VERSIONS: ClassVar[tuple[int, int]] = (0, 5)
    FLEXIBLE_FROM: ClassVar[int] = 3
    FIELDS: ClassVar[tuple[Field, ...]] = (
        Field("throttle_time_ms", INT32, "0+"),
        Field("error_code", INT16, "0+"),
        Field("producer_id", INT64, "5+", ignorable=True),
        Field("producer_epoch", INT16, "5+", ignorable=True),
    )

    throttle_time_ms: int = 0
    error_code: int = 0
    producer_id: int = -1
    producer_epoch: int = -1
