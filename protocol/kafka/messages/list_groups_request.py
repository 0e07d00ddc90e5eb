"""Kafka's ``ListGroupsRequest``, made from ``schemas/ListGroupsRequest.json`` by
``tests/protocol/kafka/message_modules.py``; not to be edited by hand."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import ClassVar

from protocol.kafka.schema import STRING, Array, Field, Message


@dataclass(slots=True)
class ListGroupsRequest(Message):
    """The message; the schema says what each field means."""

    API_KEY: ClassVar[int] = 16
    VERSIONS: ClassVar[tuple[int, int]] = (0, 5)
    FLEXIBLE_FROM: ClassVar[int] = 3
    FIELDS: ClassVar[tuple[Field, ...]] = (
        Field("states_filter", Array(STRING), "4+"),
        Field("types_filter", Array(STRING), "5+"),
    )

    states_filter: list[str] = field(default_factory=list)
    types_filter: list[str] = field(default_factory=list)
