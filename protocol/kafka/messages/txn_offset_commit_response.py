"""Kafka's ``TxnOffsetCommitResponse``, made from ``schemas/TxnOffsetCommitResponse.json`` by
``tests/protocol/kafka/message_modules.py``; not to be edited by hand."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import ClassVar

from protocol.kafka.schema import INT16, INT32, STRING, UUID, Array, Field, Message, Structure


@dataclass(slots=True)
class TxnOffsetCommitResponsePartition(Structure):
    """A part of ``TxnOffsetCommitResponse``; the schema says what each field means."""

    FIELDS: ClassVar[tuple[Field, ...]] = (
        Field("partition_index", INT32, "0+"),
        Field("error_code", INT16, "0+"),
    )

    partition_index: int = 0
    error_code: int = 0


@dataclass(slots=True)
class TxnOffsetCommitResponseTopic(Structure):
    """A part of ``TxnOffsetCommitResponse``; the schema says what each field means."""

    FIELDS: ClassVar[tuple[Field, ...]] = (
        Field("name", STRING, "0-5", ignorable=True),
        Field("topic_id", UUID, "6+", ignorable=True),
        Field("partitions", Array(TxnOffsetCommitResponsePartition), "0+"),
    )

    name: str = ""
    topic_id: bytes = bytes(16)
    partitions: list[TxnOffsetCommitResponsePartition] = field(default_factory=list)


@dataclass(slots=True)
class TxnOffsetCommitResponse(Message):
    """The message; the schema says what each field means."""

    API_KEY: ClassVar[int] = 28
    VERSIONS: ClassVar[tuple[int, int]] = (0, 6)
    FLEXIBLE_FROM: ClassVar[int] = 3
    FIELDS: ClassVar[tuple[Field, ...]] = (
        Field("throttle_time_ms", INT32, "0+"),
        Field("topics", Array(TxnOffsetCommitResponseTopic), "0+"),
    )

    throttle_time_ms: int = 0
    topics: list[TxnOffsetCommitResponseTopic] = field(default_factory=list)
