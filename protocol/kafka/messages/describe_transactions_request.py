"""Kafka's ``DescribeTransactionsRequest``, made from ``schemas/DescribeTransactionsRequest.json`` by
``tests/protocol/kafka/message_modules.py``; not to be edited by hand."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import ClassVar

from protocol.kafka.schema import STRING, Array, Field, Message


@dataclass(slots=True)
class DescribeTransactionsRequest(Message):
    """The message; the schema says what each field means."""

    API_KEY: ClassVar[int] = 65
    VERSIONS: ClassVar[tuple[int, int]] = (0, 0)
    FLEXIBLE_FROM: ClassVar[int] = 0
    FIELDS: ClassVar[tuple[Field, ...]] = (Field("transactional_ids", Array(STRING), "0+"),)

    transactional_ids: list[str] = field(default_factory=list)
