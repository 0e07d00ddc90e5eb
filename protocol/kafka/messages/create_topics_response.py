"""Kafka's ``CreateTopicsResponse``, made from ``schemas/CreateTopicsResponse.json`` by
``tests/protocol/kafka/message_modules.py``; not to be edited by hand."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import ClassVar

from protocol.kafka.schema import BOOL, INT8, INT16, INT32, STRING, UUID, Array, Field, Message, Structure


@dataclass(slots=True)
class CreatableTopicConfigs(Structure):
    """A part of ``CreateTopicsResponse``; the schema says what each field means."""

    FIELDS: ClassVar[tuple[Field, ...]] = (
        Field("name", STRING, "5+"),
        Field("value", STRING, "5+", nullable="5+"),
        Field("read_only", BOOL, "5+"),
        Field("config_source", INT8, "5+", ignorable=True),
        Field("is_sensitive", BOOL, "5+"),
    )

    name: str = ""
    value: str | None = ""
    read_only: bool = False
    config_source: int = -1
    is_sensitive: bool = False


@dataclass(slots=True)
class CreatableTopicResult(Structure):
    """A part of ``CreateTopicsResponse``; the schema says what each field means."""

    FIELDS: ClassVar[tuple[Field, ...]] = (
        Field("name", STRING, "0+"),
        Field("topic_id", UUID, "7+", ignorable=True),
        Field("error_code", INT16, "0+"),
        Field("error_message", STRING, "1+", nullable="0+", ignorable=True),
        Field("topic_config_error_code", INT16, "5+", tagged="5+", tag=0, ignorable=True),
        Field("num_partitions", INT32, "5+", ignorable=True),
        Field("replication_factor", INT16, "5+", ignorable=True),
        Field("configs", Array(CreatableTopicConfigs), "5+", nullable="5+", ignorable=True),
    )

    name: str = ""
    topic_id: bytes = bytes(16)
    error_code: int = 0
    error_message: str | None = ""
    topic_config_error_code: int = 0
    num_partitions: int = -1
    replication_factor: int = -1
    configs: list[CreatableTopicConfigs] | None = field(default_factory=list)


@dataclass(slots=True)
class CreateTopicsResponse(Message):
    """The message; the schema says what each field means."""

    API_KEY: ClassVar[int] = 19
    VERSIONS: ClassVar[tuple[int, int]] = (2, 7)
    FLEXIBLE_FROM: ClassVar[int] = 5
    FIELDS: ClassVar[tuple[Field, ...]] = (
        Field("throttle_time_ms", INT32, "2+", ignorable=True),
        Field("topics", Array(CreatableTopicResult), "0+"),
    )

    throttle_time_ms: int = 0
    topics: list[CreatableTopicResult] = field(default_factory=list)
