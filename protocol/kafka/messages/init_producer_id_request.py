"""Kafka's ``InitProducerIdRequest``, made from ``schemas/InitProducerIdRequest.json`` by
``tests/protocol/kafka/message_modules.py``; not to be edited by hand."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from protocol.kafka.schema import BOOL, INT16, INT32, INT64, STRING, Field, Message


@dataclass(slots=True)
class InitProducerIdRequest(Message):
    """The message; the schema says what each field means."""

    API_KEY: ClassVar[int] = 22
    VERSIONS: ClassVar[tuple[int, int]] = (0, 6)
    FLEXIBLE_FROM: ClassVar[int] = 2
    FIELDS: ClassVar[tuple[Field, ...]] = (
        Field("transactional_id", STRING, "0+", nullable="0+"),
        Field("transaction_timeout_ms", INT32, "0+"),
        Field("producer_id", INT64, "3+"),
        Field("producer_epoch", INT16, "3+"),
        Field("enable2_pc", BOOL, "6+"),
        Field("keep_prepared_txn", BOOL, "6+"),
    )

    transactional_id: str | None = ""
    transaction_timeout_ms: int = 0
    producer_id: int = -1
    producer_epoch: int = -1
    enable2_pc: bool = False
    keep_prepared_txn: bool = False
