"""Kafka's ``DeleteRecordsResponse``, made from ``schemas/DeleteRecordsResponse.json`` by
``tests/protocol/kafka/message_modules.py``; not to be edited by hand."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import ClassVar

from protocol.kafka.schema import INT16, INT32, INT64, STRING, Array, Field, Message, Structure


@dataclass(slots=True)
class DeleteRecordsPartitionResult(Structure):
    """A part of ``DeleteRecordsResponse``; the schema says what each field means."""

    FIELDS: ClassVar[tuple[Field, ...]] = (
        Field("partition_index", INT32, "0+"),
        Field("low_watermark", INT64, "0+"),
        Field("error_code", INT16, "0+"),
    )

    partition_index: int = 0
    low_watermark: int = 0
    error_code: int = 0


@dataclass(slots=True)
class DeleteRecordsTopicResult(Structure):
    """A part of ``DeleteRecordsResponse``; the schema says what each field means."""

    FIELDS: ClassVar[tuple[Field, ...]] = (
        Field("name", STRING, "0+"),
        Field("partitions", Array(DeleteRecordsPartitionResult), "0+"),
    )

    name: str = ""
    partitions: list[DeleteRecordsPartitionResult] = field(default_factory=list)


@dataclass(slots=True)
class DeleteRecordsResponse(Message):
    """The message; the schema says what each field means."""

    API_KEY: ClassVar[int] = 21
    VERSIONS: ClassVar[tuple[int, int]] = (0, 2)
    FLEXIBLE_FROM: ClassVar[int] = 2
    FIELDS: ClassVar[tuple[Field, ...]] = (
        Field("throttle_time_ms", INT32, "0+"),
        Field("topics", Array(DeleteRecordsTopicResult), "0+"),
    )

    throttle_time_ms: int = 0
    topics: list[DeleteRecordsTopicResult] = field(default_factory=list)
