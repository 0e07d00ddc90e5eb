"""Kafka's ``ListOffsetsRequest``, made from ``schemas/ListOffsetsRequest.json`` by
``tests/protocol/kafka/message_modules.py``; not to be edited by hand."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import ClassVar

from protocol.kafka.schema import INT8, INT32, INT64, STRING, Array, Field, Message, Structure


@dataclass(slots=True)
class ListOffsetsPartition(Structure):
    """A part of ``ListOffsetsRequest``; the schema says what each field means."""

    FIELDS: ClassVar[tuple[Field, ...]] = (
        Field("partition_index", INT32, "0+"),
        Field("current_leader_epoch", INT32, "4+", ignorable=True),
        Field("timestamp", INT64, "0+"),
    )

    partition_index: int = 0
    current_leader_epoch: int = -1
    timestamp: int = 0


@dataclass(slots=True)
class ListOffsetsTopic(Structure):
    """A part of ``ListOffsetsRequest``; the schema says what each field means."""

    FIELDS: ClassVar[tuple[Field, ...]] = (
        Field("name", STRING, "0+"),
        Field("partitions", Array(ListOffsetsPartition), "0+"),
    )

    name: str = ""
    partitions: list[ListOffsetsPartition] = field(default_factory=list)


@dataclass(slots=True)
class ListOffsetsRequest(Message):
    """The message; the schema says what each field means."""

    API_KEY: ClassVar[int] = 2
    VERSIONS: ClassVar[tuple[int, int]] = (1, 11)
    FLEXIBLE_FROM: ClassVar[int] = 6
    FIELDS: ClassVar[tuple[Field, ...]] = (
        Field("replica_id", INT32, "0+"),
        Field("isolation_level", INT8, "2+"),
        Field("topics", Array(ListOffsetsTopic), "0+"),
        Field("timeout_ms", INT32, "10+", ignorable=True),
    )

    replica_id: int = 0
    isolation_level: int = 0
    topics: list[ListOffsetsTopic] = field(default_factory=list)
    timeout_ms: int = 0
