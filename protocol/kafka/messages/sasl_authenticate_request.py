"""Kafka's ``SaslAuthenticateRequest``, made from ``schemas/SaslAuthenticateRequest.json`` by
``tests/protocol/kafka/message_modules.py``; not to be edited by hand."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from protocol.kafka.schema import BYTES, Field, Message


@dataclass(slots=True)
class SaslAuthenticateRequest(Message):
    """The message; the schema says what each field means."""

    API_KEY: ClassVar[int] = 36
    VERSIONS: ClassVar[tuple[int, int]] = (0, 2)
    FLEXIBLE_FROM: ClassVar[int] = 2
    FIELDS: ClassVar[tuple[Field, ...]] = (Field("auth_bytes", BYTES, "0+"),)

    auth_bytes: bytes = b""
