"""Kafka's ``ListTransactionsRequest``, made from ``schemas/ListTransactionsRequest.json`` by
``tests/protocol/kafka/message_modules.py``; not to be edited by hand."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import ClassVar

from protocol.kafka.schema import INT64, STRING, Array, Field, Message


@dataclass(slots=True)
class ListTransactionsRequest(Message):
    """The message; the schema says what each field means."""

    API_KEY: ClassVar[int] = 66
    VERSIONS: ClassVar[tuple[int, int]] = (0, 2)
    FLEXIBLE_FROM: ClassVar[int] = 0
    FIELDS: ClassVar[tuple[Field, ...]] = (
        Field("state_filters", Array(STRING), "0+"),
        Field("producer_id_filters", Array(INT64), "0+"),
        Field("duration_filter", INT64, "1+"),
        Field("transactional_id_pattern", STRING, "2+", nullable="2+"),
    )

    state_filters: list[str] = field(default_factory=list)
    producer_id_filters: list[int] = field(default_factory=list)
    duration_filter: int = -1
    transactional_id_pattern: str | None = None
