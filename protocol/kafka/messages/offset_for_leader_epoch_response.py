"""Kafka's ``OffsetForLeaderEpochResponse``, made from ``schemas/OffsetForLeaderEpochResponse.json`` by
``tests/protocol/kafka/message_modules.py``; not to be edited by hand."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import ClassVar

from protocol.kafka.schema import INT16, INT32, INT64, STRING, Array, Field, Message, Structure


@dataclass(slots=True)
class EpochEndOffset(Structure):
    """A part of ``OffsetForLeaderEpochResponse``; the schema says what each field means."""

    FIELDS: ClassVar[tuple[Field, ...]] = (
        Field("error_code", INT16, "0+"),
        Field("partition", INT32, "0+"),
        Field("leader_epoch", INT32, "1+", ignorable=True),
        Field("end_offset", INT64, "0+"),
    )

    error_code: int = 0
    partition: int = 0
    leader_epoch: int = -1
    end_offset: int = -1


@dataclass(slots=True)
class OffsetForLeaderTopicResult(Structure):
    """A part of ``OffsetForLeaderEpochResponse``; the schema says what each field means."""

    FIELDS: ClassVar[tuple[Field, ...]] = (
        Field("topic", STRING, "0+"),
        Field("partitions", Array(EpochEndOffset), "0+"),
    )

    topic: str = ""
    partitions: list[EpochEndOffset] = field(default_factory=list)


@dataclass(slots=True)
class OffsetForLeaderEpochResponse(Message):
    """The message; the schema says what each field means."""

    API_KEY: ClassVar[int] = 23
    VERSIONS: ClassVar[tuple[int, int]] = (2, 4)
    FLEXIBLE_FROM: ClassVar[int] = 4
    FIELDS: ClassVar[tuple[Field, ...]] = (
        Field("throttle_time_ms", INT32, "2+", ignorable=True),
        Field("topics", Array(OffsetForLeaderTopicResult), "0+"),
    )

    throttle_time_ms: int = 0
    topics: list[OffsetForLeaderTopicResult] = field(default_factory=list)
