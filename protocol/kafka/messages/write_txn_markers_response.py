"""Kafka's ``WriteTxnMarkersResponse``, made from ``schemas/WriteTxnMarkersResponse.json`` by
``tests/protocol/kafka/message_modules.py``; not to be edited by hand."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import ClassVar

from protocol.kafka.schema import INT16, INT32, INT64, STRING, Array, Field, Message, Structure


@dataclass(slots=True)
class WritableTxnMarkerPartitionResult(Structure):
    """A part of ``WriteTxnMarkersResponse``; the schema says what each field means."""

    FIELDS: ClassVar[tuple[Field, ...]] = (
        Field("partition_index", INT32, "0+"),
        Field("error_code", INT16, "0+"),
    )

    partition_index: int = 0
    error_code: int = 0


@dataclass(slots=True)
class WritableTxnMarkerTopicResult(Structure):
    """A part of ``WriteTxnMarkersResponse``; the schema says what each field means."""

    FIELDS: ClassVar[tuple[Field, ...]] = (
        Field("name", STRING, "0+"),
        Field("partitions", Array(WritableTxnMarkerPartitionResult), "0+"),
    )

    name: str = ""
    partitions: list[WritableTxnMarkerPartitionResult] = field(default_factory=list)


@dataclass(slots=True)
class WritableTxnMarkerResult(Structure):
    """A part of ``WriteTxnMarkersResponse``; the schema says what each field means."""

    FIELDS: ClassVar[tuple[Field, ...]] = (
        Field("producer_id", INT64, "0+"),
        Field("topics", Array(WritableTxnMarkerTopicResult), "0+"),
    )

    producer_id: int = 0
    topics: list[WritableTxnMarkerTopicResult] = field(default_factory=list)


@dataclass(slots=True)
class WriteTxnMarkersResponse(Message):
    """The message; the schema says what each field means."""

    API_KEY: ClassVar[int] = 27
    VERSIONS: ClassVar[tuple[int, int]] = (1, 2)
    FLEXIBLE_FROM: ClassVar[int] = 1
    FIELDS: ClassVar[tuple[Field, ...]] = (Field("markers", Array(WritableTxnMarkerResult), "0+"),)

    markers: list[WritableTxnMarkerResult] = field(default_factory=list)
