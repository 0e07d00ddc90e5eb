"""Kafka's ``TxnOffsetCommitRequest``, made from ``schemas/TxnOffsetCommitRequest.json`` by
``tests/protocol/kafka/message_modules.py``; not to be edited by hand."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import ClassVar

from protocol.kafka.schema import INT16, INT32, INT64, STRING, UUID, Array, Field, Message, Structure


@dataclass(slots=True)
class TxnOffsetCommitRequestPartition(Structure):
    """A part of ``TxnOffsetCommitRequest``; the schema says what each field means."""

    FIELDS: ClassVar[tuple[Field, ...]] = (
        Field("partition_index", INT32, "0+"),
        Field("committed_offset", INT64, "0+"),
        Field("committed_leader_epoch", INT32, "2+", ignorable=True),
        Field("committed_metadata", STRING, "0+", nullable="0+"),
    )

    partition_index: int = 0
    committed_offset: int = 0
    committed_leader_epoch: int = -1
    committed_metadata: str | None = ""


@dataclass(slots=True)
class TxnOffsetCommitRequestTopic(Structure):
    """A part of ``TxnOffsetCommitRequest``; the schema says what each field means."""

    FIELDS: ClassVar[tuple[Field, ...]] = (
        Field("name", STRING, "0-5", ignorable=True),
        Field("topic_id", UUID, "6+", ignorable=True),
        Field("partitions", Array(TxnOffsetCommitRequestPartition), "0+"),
    )

    name: str = ""
    topic_id: bytes = bytes(16)
    partitions: list[TxnOffsetCommitRequestPartition] = field(default_factory=list)


@dataclass(slots=True)
class TxnOffsetCommitRequest(Message):
    """The message; the schema says what each field means."""

    API_KEY: ClassVar[int] = 28
    VERSIONS: ClassVar[tuple[int, int]] = (0, 6)
    FLEXIBLE_FROM: ClassVar[int] = 3
    FIELDS: ClassVar[tuple[Field, ...]] = (
        Field("transactional_id", STRING, "0+"),
        Field("group_id", STRING, "0+"),
        Field("producer_id", INT64, "0+"),
        Field("producer_epoch", INT16, "0+"),
        Field("generation_id_or_member_epoch", INT32, "3+"),
        Field("member_id", STRING, "3+"),
        Field("group_instance_id", STRING, "3+", nullable="3+"),
        Field("topics", Array(TxnOffsetCommitRequestTopic), "0+"),
    )

    transactional_id: str = ""
    group_id: str = ""
    producer_id: int = 0
    producer_epoch: int = 0
    generation_id_or_member_epoch: int = -1
    member_id: str = ""
    group_instance_id: str | None = None
    topics: list[TxnOffsetCommitRequestTopic] = field(default_factory=list)
