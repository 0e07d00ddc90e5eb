"""Kafka's ``AddOffsetsToTxnRequest``, made from ``schemas/AddOffsetsToTxnRequest.json`` by
``tests/protocol/kafka/message_modules.py``; not to be edited by hand."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from protocol.kafka.schema import INT16, INT64, STRING, Field, Message


@dataclass(slots=True)
class AddOffsetsToTxnRequest(Message):
    """The message; the schema says what each field means."""

    API_KEY: ClassVar[int] = 25
    VERSIONS: ClassVar[tuple[int, int]] = (0, 4)
    FLEXIBLE_FROM: ClassVar[int] = 3
    FIELDS: ClassVar[tuple[Field, ...]] = (
        Field("transactional_id", STRING, "0+"),
        Field("producer_id", INT64, "0+"),
        Field("producer_epoch", INT16, "0+"),
        Field("group_id", STRING, "0+"),
    )

    transactional_id: str = ""
    producer_id: int = 0
    producer_epoch: int = 0
    group_id: str = ""
