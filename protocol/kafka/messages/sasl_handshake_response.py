"""Kafka's ``SaslHandshakeResponse``, made from ``schemas/SaslHandshakeResponse.json`` by
``tests/protocol/kafka/message_modules.py``; not to be edited by hand."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import ClassVar

from protocol.kafka.schema import INT16, STRING, Array, Field, Message


@dataclass(slots=True)
class SaslHandshakeResponse(Message):
    """The message; the schema says what each field means."""

    API_KEY: ClassVar[int] = 17
    VERSIONS: ClassVar[tuple[int, int]] = (0, 1)
    FIELDS: ClassVar[tuple[Field, ...]] = (
        Field("error_code", INT16, "0+"),
        Field("mechanisms", Array(STRING), "0+"),
    )

    error_code: int = 0
    mechanisms: list[str] = field(default_factory=list)
