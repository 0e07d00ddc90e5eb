"""Kafka's ``MetadataRequest``, made from ``schemas/MetadataRequest.json`` by
``tests/protocol/kafka/message_modules.py``; not to be edited by hand."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import ClassVar

from protocol.kafka.schema import BOOL, STRING, UUID, Array, Field, Message, Structure


@dataclass(slots=True)
class MetadataRequestTopic(Structure):
    """A part of ``MetadataRequest``; the schema says what each field means."""

    FIELDS: ClassVar[tuple[Field, ...]] = (
        Field("topic_id", UUID, "10+", ignorable=True),
        Field("name", STRING, "0+", nullable="10+"),
    )

    topic_id: bytes = bytes(16)
    name: str | None = ""


@dataclass(slots=True)
class MetadataRequest(Message):
    """The message; the schema says what each field means."""

    API_KEY: ClassVar[int] = 3
    VERSIONS: ClassVar[tuple[int, int]] = (0, 13)
    FLEXIBLE_FROM: ClassVar[int] = 9
    FIELDS: ClassVar[tuple[Field, ...]] = (
        Field("topics", Array(MetadataRequestTopic), "0+", nullable="1+"),
        Field("allow_auto_topic_creation", BOOL, "4+"),
        Field("include_cluster_authorized_operations", BOOL, "8-10"),
        Field("include_topic_authorized_operations", BOOL, "8+"),
    )

    topics: list[MetadataRequestTopic] | None = field(default_factory=list)
    allow_auto_topic_creation: bool = True
    include_cluster_authorized_operations: bool = False
    include_topic_authorized_operations: bool = False
