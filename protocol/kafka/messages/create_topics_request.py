"""Kafka's ``CreateTopicsRequest``, made from ``schemas/CreateTopicsRequest.json`` by
``tests/protocol/kafka/message_modules.py``; not to be edited by hand."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import ClassVar

from protocol.kafka.schema import BOOL, INT16, INT32, STRING, Array, Field, Message, Structure


@dataclass(slots=True)
class CreatableReplicaAssignment(Structure):
    """A part of ``CreateTopicsRequest``; the schema says what each field means."""

    FIELDS: ClassVar[tuple[Field, ...]] = (
        Field("partition_index", INT32, "0+"),
        Field("broker_ids", Array(INT32), "0+"),
    )

    partition_index: int = 0
    broker_ids: list[int] = field(default_factory=list)


@dataclass(slots=True)
class CreatableTopicConfig(Structure):
    """A part of ``CreateTopicsRequest``; the schema says what each field means."""

    FIELDS: ClassVar[tuple[Field, ...]] = (
        Field("name", STRING, "0+"),
        Field("value", STRING, "0+", nullable="0+"),
    )

    name: str = ""
    value: str | None = ""


@dataclass(slots=True)
class CreatableTopic(Structure):
    """A part of ``CreateTopicsRequest``; the schema says what each field means."""

    FIELDS: ClassVar[tuple[Field, ...]] = (
        Field("name", STRING, "0+"),
        Field("num_partitions", INT32, "0+"),
        Field("replication_factor", INT16, "0+"),
        Field("assignments", Array(CreatableReplicaAssignment), "0+"),
        Field("configs", Array(CreatableTopicConfig), "0+"),
    )

    name: str = ""
    num_partitions: int = 0
    replication_factor: int = 0
    assignments: list[CreatableReplicaAssignment] = field(default_factory=list)
    configs: list[CreatableTopicConfig] = field(default_factory=list)


@dataclass(slots=True)
class CreateTopicsRequest(Message):
    """The message; the schema says what each field means."""

    API_KEY: ClassVar[int] = 19
    VERSIONS: ClassVar[tuple[int, int]] = (2, 7)
    FLEXIBLE_FROM: ClassVar[int] = 5
    FIELDS: ClassVar[tuple[Field, ...]] = (
        Field("topics", Array(CreatableTopic), "0+"),
        Field("timeout_ms", INT32, "0+"),
        Field("validate_only", BOOL, "1+"),
    )

    topics: list[CreatableTopic] = field(default_factory=list)
    timeout_ms: int = 60000
    validate_only: bool = False
