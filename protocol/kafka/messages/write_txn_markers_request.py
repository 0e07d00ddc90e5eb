"""Kafka's ``WriteTxnMarkersRequest``, made from ``schemas/WriteTxnMarkersRequest.json`` by
``tests/protocol/kafka/message_modules.py``; not to be edited by hand."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import ClassVar

from protocol.kafka.schema import BOOL, INT8, INT16, INT32, INT64, STRING, Array, Field, Message, Structure


@dataclass(slots=True)
class WritableTxnMarkerTopic(Structure):
    """A part of ``WriteTxnMarkersRequest``; the schema says what each field means."""

    FIELDS: ClassVar[tuple[Field, ...]] = (
        Field("name", STRING, "0+"),
        Field("partition_indexes", Array(INT32), "0+"),
    )

    name: str = ""
    partition_indexes: list[int] = field(default_factory=list)


@dataclass(slots=True)
class WritableTxnMarker(Structure):
    """A part of ``WriteTxnMarkersRequest``; the schema says what each field means."""

    FIELDS: ClassVar[tuple[Field, ...]] = (
        Field("producer_id", INT64, "0+"),
        Field("producer_epoch", INT16, "0+"),
        Field("transaction_result", BOOL, "0+"),
        Field("topics", Array(WritableTxnMarkerTopic), "0+"),
        Field("coordinator_epoch", INT32, "0+"),
        Field("transaction_version", INT8, "2+", ignorable=True),
    )

    producer_id: int = 0
    producer_epoch: int = 0
    transaction_result: bool = False
    topics: list[WritableTxnMarkerTopic] = field(default_factory=list)
    coordinator_epoch: int = 0
    transaction_version: int = 0


@dataclass(slots=True)
class WriteTxnMarkersRequest(Message):
    """The message; the schema says what each field means."""

    API_KEY: ClassVar[int] = 27
    VERSIONS: ClassVar[tuple[int, int]] = (1, 2)
    FLEXIBLE_FROM: ClassVar[int] = 1
    FIELDS: ClassVar[tuple[Field, ...]] = (Field("markers", Array(WritableTxnMarker), "0+"),)

    markers: list[WritableTxnMarker] = field(default_factory=list)
