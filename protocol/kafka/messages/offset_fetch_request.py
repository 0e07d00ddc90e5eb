"""Kafka's ``OffsetFetchRequest``, made from ``schemas/OffsetFetchRequest.json`` by
``tests/protocol/kafka/message_modules.py``; not to be edited by hand."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import ClassVar

from protocol.kafka.schema import BOOL, INT32, STRING, UUID, Array, Field, Message, Structure


@dataclass(slots=True)
class OffsetFetchRequestTopic(Structure):
    """A part of ``OffsetFetchRequest``; the schema says what each field means."""

    FIELDS: ClassVar[tuple[Field, ...]] = (
        Field("name", STRING, "0-7"),
        Field("partition_indexes", Array(INT32), "0-7"),
    )

    name: str = ""
    partition_indexes: list[int] = field(default_factory=list)


@dataclass(slots=True)
class OffsetFetchRequestTopics(Structure):
    """A part of ``OffsetFetchRequest``; the schema says what each field means."""

    FIELDS: ClassVar[tuple[Field, ...]] = (
        Field("name", STRING, "8-9", ignorable=True),
        Field("topic_id", UUID, "10+", ignorable=True),
        Field("partition_indexes", Array(INT32), "8+"),
    )

    name: str = ""
    topic_id: bytes = bytes(16)
    partition_indexes: list[int] = field(default_factory=list)


@dataclass(slots=True)
class OffsetFetchRequestGroup(Structure):
    """A part of ``OffsetFetchRequest``; the schema says what each field means."""

    FIELDS: ClassVar[tuple[Field, ...]] = (
        Field("group_id", STRING, "8+"),
        Field("member_id", STRING, "9+", nullable="9+", ignorable=True),
        Field("member_epoch", INT32, "9+", ignorable=True),
        Field("topics", Array(OffsetFetchRequestTopics), "8+", nullable="8+"),
    )

    group_id: str = ""
    member_id: str | None = None
    member_epoch: int = -1
    topics: list[OffsetFetchRequestTopics] | None = field(default_factory=list)


@dataclass(slots=True)
class OffsetFetchRequest(Message):
    """The message; the schema says what each field means."""

    API_KEY: ClassVar[int] = 9
    VERSIONS: ClassVar[tuple[int, int]] = (1, 10)
    FLEXIBLE_FROM: ClassVar[int] = 6
    FIELDS: ClassVar[tuple[Field, ...]] = (
        Field("group_id", STRING, "0-7"),
        Field("topics", Array(OffsetFetchRequestTopic), "0-7", nullable="2-7"),
        Field("groups", Array(OffsetFetchRequestGroup), "8+"),
        Field("require_stable", BOOL, "7+"),
    )

    group_id: str = ""
    topics: list[OffsetFetchRequestTopic] | None = field(default_factory=list)
    groups: list[OffsetFetchRequestGroup] = field(default_factory=list)
    require_stable: bool = False
