"""Every message of Kafka's protocol that has a module, and its versions."""

from __future__ import annotations

import importlib
from typing import Final

from protocol.kafka.schema import Message
from tests.protocol.kafka.message_modules import schema_names, snake_case


def _kind(name: str) -> type[Message]:
    kind = getattr(importlib.import_module(f"protocol.kafka.messages.{snake_case(name)}"), name)
    assert isinstance(kind, type)
    assert issubclass(kind, Message)
    return kind


KINDS: Final = {name: _kind(name) for name in schema_names()}

EVERY_VERSION: Final = [
    (kind, version) for kind in KINDS.values() for version in range(kind.VERSIONS[0], kind.VERSIONS[1] + 1)
]
"""Of every kind."""
