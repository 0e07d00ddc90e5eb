"""Kafka's messages to bytes and back."""

from __future__ import annotations

import pytest

from protocol.kafka.decoding import decode
from protocol.kafka.encoding import encode
from protocol.kafka.schema import Message
from tests.protocol.kafka.kinds import EVERY_VERSION

each_version = pytest.mark.parametrize(
    ("kind", "version"), EVERY_VERSION, ids=[f"{kind.__name__}-{version}" for kind, version in EVERY_VERSION]
)


@each_version
def test_a_message_of_defaults_survives(kind: type[Message], version: int) -> None:
    data = b"".join(encode(kind(), version))
    assert decode(kind, version, data) == kind()
    assert decode(kind, version, memoryview(b"..." + data + b"behind"), 3) == kind()
