"""Kafka's ``OffsetDeleteRequest``, made from ``schemas/OffsetDeleteRequest.json`` by
``tests/protocol/kafka/message_modules.py``; not to be edited by hand."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import ClassVar

from protocol.kafka.schema import INT32, STRING, Array, Field, Message, Structure


@dataclass(slots=True)
class OffsetDeleteRequestPartition(Structure):
    """A part of ``OffsetDeleteRequest``; the schema says what each field means."""

    FIELDS: ClassVar[tuple[Field, ...]] = (Field("partition_index", INT32, "0+"),)

    partition_index: int = 0


@dataclass(slots=True)
class OffsetDeleteRequestTopic(Structure):
    """A part of ``OffsetDeleteRequest``; the schema says what each field means."""

    FIELDS: ClassVar[tuple[Field, ...]] = (
        Field("name", STRING, "0+"),
        Field("partitions", Array(OffsetDeleteRequestPartition), "0+"),
    )

    name: str = ""
    partitions: list[OffsetDeleteRequestPartition] = field(default_factory=list)


@dataclass(slots=True)
class OffsetDeleteRequest(Message):
    """The message; the schema says what each field means."""

    API_KEY: ClassVar[int] = 47
    VERSIONS: ClassVar[tuple[int, int]] = (0, 0)
    FIELDS: ClassVar[tuple[Field, ...]] = (
        Field("group_id", STRING, "0+"),
        Field("topics", Array(OffsetDeleteRequestTopic), "0+"),
    )

    group_id: str = ""
    topics: list[OffsetDeleteRequestTopic] = field(default_factory=list)
