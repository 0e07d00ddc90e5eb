"""Kafka's ``OffsetForLeaderEpochRequest``, made from ``schemas/OffsetForLeaderEpochRequest.json`` by
``tests/protocol/kafka/message_modules.py``; not to be edited by hand."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import ClassVar

from protocol.kafka.schema import INT32, STRING, Array, Field, Message, Structure


@dataclass(slots=True)
class OffsetForLeaderPartition(Structure):
    """A part of ``OffsetForLeaderEpochRequest``; the schema says what each field means."""

    FIELDS: ClassVar[tuple[Field, ...]] = (
        Field("partition", INT32, "0+"),
        Field("current_leader_epoch", INT32, "2+", ignorable=True),
        Field("leader_epoch", INT32, "0+"),
    )

    partition: int = 0
    current_leader_epoch: int = -1
    leader_epoch: int = 0


@dataclass(slots=True)
class OffsetForLeaderTopic(Structure):
    """A part of ``OffsetForLeaderEpochRequest``; the schema says what each field means."""

    FIELDS: ClassVar[tuple[Field, ...]] = (
        Field("topic", STRING, "0+"),
        Field("partitions", Array(OffsetForLeaderPartition), "0+"),
    )

    topic: str = ""
    partitions: list[OffsetForLeaderPartition] = field(default_factory=list)


@dataclass(slots=True)
class OffsetForLeaderEpochRequest(Message):
    """The message; the schema says what each field means."""

    API_KEY: ClassVar[int] = 23
    VERSIONS: ClassVar[tuple[int, int]] = (2, 4)
    FLEXIBLE_FROM: ClassVar[int] = 4
    FIELDS: ClassVar[tuple[Field, ...]] = (
        Field("replica_id", INT32, "3+", ignorable=True),
        Field("topics", Array(OffsetForLeaderTopic), "0+"),
    )

    replica_id: int = -2
    topics: list[OffsetForLeaderTopic] = field(default_factory=list)
