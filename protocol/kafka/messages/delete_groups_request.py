"""Kafka's ``DeleteGroupsRequest``, made from ``schemas/DeleteGroupsRequest.json`` by
``tests/protocol/kafka/message_modules.py``; not to be edited by hand."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import ClassVar

from protocol.kafka.schema import STRING, Array, Field, Message


@dataclass(slots=True)
class DeleteGroupsRequest(Message):
    """The message; the schema says what each field means."""

    API_KEY: ClassVar[int] = 42
    VERSIONS: ClassVar[tuple[int, int]] = (0, 3)
    FLEXIBLE_FROM: ClassVar[int] = 2
    FIELDS: ClassVar[tuple[Field, ...]] = (Field("groups_names", Array(STRING), "0+"),)

    groups_names: list[str] = field(default_factory=list)
