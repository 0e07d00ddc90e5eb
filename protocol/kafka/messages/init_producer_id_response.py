"""Kafka's ``InitProducerIdResponse``, made from ``schemas/InitProducerIdResponse.json`` by
``tests/protocol/kafka/message_modules.py``; not to be edited by hand."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from protocol.kafka.schema import INT16, INT32, INT64, Field, Message


@dataclass(slots=True)
class InitProducerIdResponse(Message):
    """The message; the schema says what each field means."""

    API_KEY: ClassVar[int] = 22
    VERSIONS: ClassVar[tuple[int, int]] = (0, 6)
    FLEXIBLE_FROM: ClassVar[int] = 2
    FIELDS: ClassVar[tuple[Field, ...]] = (
        Field("throttle_time_ms", INT32, "0+", ignorable=True),
        Field("error_code", INT16, "0+"),
        Field("producer_id", INT64, "0+"),
        Field("producer_epoch", INT16, "0+"),
        Field("ongoing_txn_producer_id", INT64, "6+"),
        Field("ongoing_txn_producer_epoch", INT16, "6+"),
    )

    throttle_time_ms: int = 0
    error_code: int = 0
    producer_id: int = -1
    producer_epoch: int = 0
    ongoing_txn_producer_id: int = -1
    ongoing_txn_producer_epoch: int = -1
