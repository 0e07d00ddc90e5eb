"""Kafka's ``DeleteRecordsRequest``, made from ``schemas/DeleteRecordsRequest.json`` by
``tests/protocol/kafka/message_modules.py``; not to be edited by hand."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import ClassVar

from protocol.kafka.schema import INT32, INT64, STRING, Array, Field, Message, Structure


@dataclass(slots=True)
class DeleteRecordsPartition(Structure):
    """A part of ``DeleteRecordsRequest``; the schema says what each field means."""

    FIELDS: ClassVar[tuple[Field, ...]] = (
        Field("partition_index", INT32, "0+"),
        Field("offset", INT64, "0+"),
    )

    partition_index: int = 0
    offset: int = 0


@dataclass(slots=True)
class DeleteRecordsTopic(Structure):
    """A part of ``DeleteRecordsRequest``; the schema says what each field means."""

    FIELDS: ClassVar[tuple[Field, ...]] = (
        Field("name", STRING, "0+"),
        Field("partitions", Array(DeleteRecordsPartition), "0+"),
    )

    name: str = ""
    partitions: list[DeleteRecordsPartition] = field(default_factory=list)


@dataclass(slots=True)
class DeleteRecordsRequest(Message):
    """The message; the schema says what each field means."""

    API_KEY: ClassVar[int] = 21
    VERSIONS: ClassVar[tuple[int, int]] = (0, 2)
    FLEXIBLE_FROM: ClassVar[int] = 2
    FIELDS: ClassVar[tuple[Field, ...]] = (
        Field("topics", Array(DeleteRecordsTopic), "0+"),
        Field("timeout_ms", INT32, "0+"),
    )

    topics: list[DeleteRecordsTopic] = field(default_factory=list)
    timeout_ms: int = 0
