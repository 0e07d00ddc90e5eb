"""Kafka's ``FindCoordinatorRequest``, made from ``schemas/FindCoordinatorRequest.json`` by
``tests/protocol/kafka/message_modules.py``; not to be edited by hand."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import ClassVar

from protocol.kafka.schema import INT8, STRING, Array, Field, Message


@dataclass(slots=True)
class FindCoordinatorRequest(Message):
    """The message; the schema says what each field means."""

    API_KEY: ClassVar[int] = 10
    VERSIONS: ClassVar[tuple[int, int]] = (0, 6)
    FLEXIBLE_FROM: ClassVar[int] = 3
    FIELDS: ClassVar[tuple[Field, ...]] = (
        Field("key", STRING, "0-3"),
        Field("key_type", INT8, "1+"),
        Field("coordinator_keys", Array(STRING), "4+"),
    )

    key: str = ""
    key_type: int = 0
    coordinator_keys: list[str] = field(default_factory=list)
