"""Kafka's ``ApiVersionsRequest``, made from ``schemas/ApiVersionsRequest.json`` by
``tests/protocol/kafka/message_modules.py``; not to be edited by hand."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from protocol.kafka.schema import INT32, STRING, Field, Message


@dataclass(slots=True)
class ApiVersionsRequest(Message):
    """The message; the schema says what each field means."""

    API_KEY: ClassVar[int] = 18
    VERSIONS: ClassVar[tuple[int, int]] = (0, 5)
    FLEXIBLE_FROM: ClassVar[int] = 3
    FIELDS: ClassVar[tuple[Field, ...]] = (
        Field("client_software_name", STRING, "3+", ignorable=True),
        Field("client_software_version", STRING, "3+", ignorable=True),
        Field("cluster_id", STRING, "5+", nullable="5+", ignorable=True),
        Field("node_id", INT32, "5+", ignorable=True),
    )

    client_software_name: str = ""
    client_software_version: str = ""
    cluster_id: str | None = None
    node_id: int = -1
