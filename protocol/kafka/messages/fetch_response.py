"""Kafka's ``FetchResponse``, made from ``schemas/FetchResponse.json`` by
``tests/protocol/kafka/message_modules.py``; not to be edited by hand."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import ClassVar

from protocol.kafka.schema import INT16, INT32, INT64, RECORDS, STRING, UUID, Array, Field, Message, Structure


@dataclass(slots=True)
class EpochEndOffset(Structure):
    """A part of ``FetchResponse``; the schema says what each field means."""

    FIELDS: ClassVar[tuple[Field, ...]] = (
        Field("epoch", INT32, "12+"),
        Field("end_offset", INT64, "12+"),
    )

    epoch: int = -1
    end_offset: int = -1


@dataclass(slots=True)
class LeaderIdAndEpoch(Structure):
    """A part of ``FetchResponse``; the schema says what each field means."""

    FIELDS: ClassVar[tuple[Field, ...]] = (
        Field("leader_id", INT32, "12+"),
        Field("leader_epoch", INT32, "12+"),
    )

    leader_id: int = -1
    leader_epoch: int = -1


@dataclass(slots=True)
class SnapshotId(Structure):
    """A part of ``FetchResponse``; the schema says what each field means."""

    FIELDS: ClassVar[tuple[Field, ...]] = (
        Field("end_offset", INT64, "0+"),
        Field("epoch", INT32, "0+"),
    )

    end_offset: int = -1
    epoch: int = -1


@dataclass(slots=True)
class AbortedTransaction(Structure):
    """A part of ``FetchResponse``; the schema says what each field means."""

    FIELDS: ClassVar[tuple[Field, ...]] = (
        Field("producer_id", INT64, "4+"),
        Field("first_offset", INT64, "4+"),
    )

    producer_id: int = 0
    first_offset: int = 0


@dataclass(slots=True)
class PartitionData(Structure):
    """A part of ``FetchResponse``; the schema says what each field means."""

    FIELDS: ClassVar[tuple[Field, ...]] = (
        Field("partition_index", INT32, "0+"),
        Field("error_code", INT16, "0+"),
        Field("high_watermark", INT64, "0+"),
        Field("last_stable_offset", INT64, "4+", ignorable=True),
        Field("log_start_offset", INT64, "5+", ignorable=True),
        Field("diverging_epoch", EpochEndOffset, "12+", tagged="12+", tag=0),
        Field("current_leader", LeaderIdAndEpoch, "12+", tagged="12+", tag=1),
        Field("snapshot_id", SnapshotId, "12+", tagged="12+", tag=2),
        Field("aborted_transactions", Array(AbortedTransaction), "4+", nullable="4+", ignorable=True),
        Field("preferred_read_replica", INT32, "11+"),
        Field("records", RECORDS, "0+", nullable="0+"),
    )

    partition_index: int = 0
    error_code: int = 0
    high_watermark: int = 0
    last_stable_offset: int = -1
    log_start_offset: int = -1
    diverging_epoch: EpochEndOffset | None = None
    current_leader: LeaderIdAndEpoch | None = None
    snapshot_id: SnapshotId | None = None
    aborted_transactions: list[AbortedTransaction] | None = field(default_factory=list)
    preferred_read_replica: int = -1
    records: bytes | None = None


@dataclass(slots=True)
class FetchableTopicResponse(Structure):
    """A part of ``FetchResponse``; the schema says what each field means."""

    FIELDS: ClassVar[tuple[Field, ...]] = (
        Field("topic", STRING, "0-12", ignorable=True),
        Field("topic_id", UUID, "13+", ignorable=True),
        Field("partitions", Array(PartitionData), "0+"),
    )

    topic: str = ""
    topic_id: bytes = bytes(16)
    partitions: list[PartitionData] = field(default_factory=list)


@dataclass(slots=True)
class NodeEndpoint(Structure):
    """A part of ``FetchResponse``; the schema says what each field means."""

    FIELDS: ClassVar[tuple[Field, ...]] = (
        Field("node_id", INT32, "16+"),
        Field("host", STRING, "16+"),
        Field("port", INT32, "16+"),
        Field("rack", STRING, "16+", nullable="16+"),
    )

    node_id: int = 0
    host: str = ""
    port: int = 0
    rack: str | None = None


@dataclass(slots=True)
class FetchResponse(Message):
    """The message; the schema says what each field means."""

    API_KEY: ClassVar[int] = 1
    VERSIONS: ClassVar[tuple[int, int]] = (4, 18)
    FLEXIBLE_FROM: ClassVar[int] = 12
    FIELDS: ClassVar[tuple[Field, ...]] = (
        Field("throttle_time_ms", INT32, "1+", ignorable=True),
        Field("error_code", INT16, "7+", ignorable=True),
        Field("session_id", INT32, "7+"),
        Field("responses", Array(FetchableTopicResponse), "0+"),
        Field("node_endpoints", Array(NodeEndpoint), "16+", tagged="16+", tag=0),
    )

    throttle_time_ms: int = 0
    error_code: int = 0
    session_id: int = 0
    responses: list[FetchableTopicResponse] = field(default_factory=list)
    node_endpoints: list[NodeEndpoint] = field(default_factory=list)
