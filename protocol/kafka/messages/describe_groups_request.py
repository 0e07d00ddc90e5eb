"""Kafka's ``DescribeGroupsRequest``, made from ``schemas/DescribeGroupsRequest.json`` by
``tests/protocol/kafka/message_modules.py``; not to be edited by hand."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import ClassVar

from protocol.kafka.schema import BOOL, STRING, Array, Field, Message


@dataclass(slots=True)
class DescribeGroupsRequest(Message):
    """The message; the schema says what each field means."""

    API_KEY: ClassVar[int] = 15
    VERSIONS: ClassVar[tuple[int, int]] = (0, 6)
    FLEXIBLE_FROM: ClassVar[int] = 5
    FIELDS: ClassVar[tuple[Field, ...]] = (
        Field("groups", Array(STRING), "0+"),
        Field("include_authorized_operations", BOOL, "3+"),
    )

    groups: list[str] = field(default_factory=list)
    include_authorized_operations: bool = False
