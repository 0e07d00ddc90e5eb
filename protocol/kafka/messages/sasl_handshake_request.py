"""Kafka's ``SaslHandshakeRequest``, made from ``schemas/SaslHandshakeRequest.json`` by
``tests/protocol/kafka/message_modules.py``; not to be edited by hand."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from protocol.kafka.schema import STRING, Field, Message


@dataclass(slots=True)
class SaslHandshakeRequest(Message):
    """The message; the schema says what each field means."""

    API_KEY: ClassVar[int] = 17
    VERSIONS: ClassVar[tuple[int, int]] = (0, 1)
    FIELDS: ClassVar[tuple[Field, ...]] = (Field("mechanism", STRING, "0+"),)

    mechanism: str = ""
