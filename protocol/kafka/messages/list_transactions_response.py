"""Kafka's ``ListTransactionsResponse``, made from ``schemas/ListTransactionsResponse.json`` by
``tests/protocol/kafka/message_modules.py``; not to be edited by hand."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import ClassVar

from protocol.kafka.schema import INT16, INT32, INT64, STRING, Array, Field, Message, Structure


@dataclass(slots=True)
class TransactionState(Structure):
    """A part of ``ListTransactionsResponse``; the schema says what each field means."""

    FIELDS: ClassVar[tuple[Field, ...]] = (
        Field("transactional_id", STRING, "0+"),
        Field("producer_id", INT64, "0+"),
        Field("transaction_state", STRING, "0+"),
    )

    transactional_id: str = ""
    producer_id: int = 0
    transaction_state: str = ""


@dataclass(slots=True)
class ListTransactionsResponse(Message):
    """The message; the schema says what each field means."""

    API_KEY: ClassVar[int] = 66
    VERSIONS: ClassVar[tuple[int, int]] = (0, 2)
    FLEXIBLE_FROM: ClassVar[int] = 0
    FIELDS: ClassVar[tuple[Field, ...]] = (
        Field("throttle_time_ms", INT32, "0+"),
        Field("error_code", INT16, "0+"),
        Field("unknown_state_filters", Array(STRING), "0+"),
        Field("transaction_states", Array(TransactionState), "0+"),
    )

    throttle_time_ms: int = 0
    error_code: int = 0
    unknown_state_filters: list[str] = field(default_factory=list)
    transaction_states: list[TransactionState] = field(default_factory=list)
