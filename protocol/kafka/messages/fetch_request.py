"""Kafka's ``FetchRequest``, made from ``schemas/FetchRequest.json`` by
``tests/protocol/kafka/message_modules.py``; not to be edited by hand."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import ClassVar

from protocol.kafka.schema import INT8, INT32, INT64, STRING, UUID, Array, Field, Message, Structure


@dataclass(slots=True)
class ReplicaState(Structure):
    """A part of ``FetchRequest``; the schema says what each field means."""

    FIELDS: ClassVar[tuple[Field, ...]] = (
        Field("replica_id", INT32, "15+"),
        Field("replica_epoch", INT64, "15+"),
    )

    replica_id: int = -1
    replica_epoch: int = -1


@dataclass(slots=True)
class FetchPartition(Structure):
    """A part of ``FetchRequest``; the schema says what each field means."""

    FIELDS: ClassVar[tuple[Field, ...]] = (
        Field("partition", INT32, "0+"),
        Field("current_leader_epoch", INT32, "9+", ignorable=True),
        Field("fetch_offset", INT64, "0+"),
        Field("last_fetched_epoch", INT32, "12+"),
        Field("log_start_offset", INT64, "5+", ignorable=True),
        Field("partition_max_bytes", INT32, "0+"),
        Field("replica_directory_id", UUID, "17+", tagged="17+", tag=0, ignorable=True),
        Field("high_watermark", INT64, "18+", tagged="18+", tag=1, ignorable=True),
    )

    partition: int = 0
    current_leader_epoch: int = -1
    fetch_offset: int = 0
    last_fetched_epoch: int = -1
    log_start_offset: int = -1
    partition_max_bytes: int = 0
    replica_directory_id: bytes = bytes(16)
    high_watermark: int = 9223372036854775807


@dataclass(slots=True)
class FetchTopic(Structure):
    """A part of ``FetchRequest``; the schema says what each field means."""

    FIELDS: ClassVar[tuple[Field, ...]] = (
        Field("topic", STRING, "0-12", ignorable=True),
        Field("topic_id", UUID, "13+", ignorable=True),
        Field("partitions", Array(FetchPartition), "0+"),
    )

    topic: str = ""
    topic_id: bytes = bytes(16)
    partitions: list[FetchPartition] = field(default_factory=list)


@dataclass(slots=True)
class ForgottenTopic(Structure):
    """A part of ``FetchRequest``; the schema says what each field means."""

    FIELDS: ClassVar[tuple[Field, ...]] = (
        Field("topic", STRING, "7-12", ignorable=True),
        Field("topic_id", UUID, "13+", ignorable=True),
        Field("partitions", Array(INT32), "7+"),
    )

    topic: str = ""
    topic_id: bytes = bytes(16)
    partitions: list[int] = field(default_factory=list)


@dataclass(slots=True)
class FetchRequest(Message):
    """The message; the schema says what each field means."""

    API_KEY: ClassVar[int] = 1
    VERSIONS: ClassVar[tuple[int, int]] = (4, 18)
    FLEXIBLE_FROM: ClassVar[int] = 12
    FIELDS: ClassVar[tuple[Field, ...]] = (
        Field("cluster_id", STRING, "12+", nullable="12+", tagged="12+", tag=0, ignorable=True),
        Field("replica_id", INT32, "0-14"),
        Field("replica_state", ReplicaState, "15+", tagged="15+", tag=1),
        Field("max_wait_ms", INT32, "0+"),
        Field("min_bytes", INT32, "0+"),
        Field("max_bytes", INT32, "3+", ignorable=True),
        Field("isolation_level", INT8, "4+", ignorable=True),
        Field("session_id", INT32, "7+", ignorable=True),
        Field("session_epoch", INT32, "7+", ignorable=True),
        Field("topics", Array(FetchTopic), "0+"),
        Field("forgotten_topics_data", Array(ForgottenTopic), "7+"),
        Field("rack_id", STRING, "11+", ignorable=True),
    )

    cluster_id: str | None = None
    replica_id: int = -1
    replica_state: ReplicaState | None = None
    max_wait_ms: int = 0
    min_bytes: int = 0
    max_bytes: int = 2147483647
    isolation_level: int = 0
    session_id: int = 0
    session_epoch: int = -1
    topics: list[FetchTopic] = field(default_factory=list)
    forgotten_topics_data: list[ForgottenTopic] = field(default_factory=list)
    rack_id: str = ""
