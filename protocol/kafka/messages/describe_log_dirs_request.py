"""Kafka's ``DescribeLogDirsRequest``, made from ``schemas/DescribeLogDirsRequest.json`` by
``tests/protocol/kafka/message_modules.py``; not to be edited by hand."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import ClassVar

from protocol.kafka.schema import INT32, STRING, Array, Field, Message, Structure


@dataclass(slots=True)
class DescribableLogDirTopic(Structure):
    """A part of ``DescribeLogDirsRequest``; the schema says what each field means."""

    FIELDS: ClassVar[tuple[Field, ...]] = (
        Field("topic", STRING, "0+"),
        Field("partitions", Array(INT32), "0+"),
    )

    topic: str = ""
    partitions: list[int] = field(default_factory=list)


@dataclass(slots=True)
class DescribeLogDirsRequest(Message):
    """The message; the schema says what each field means."""

    API_KEY: ClassVar[int] = 35
    VERSIONS: ClassVar[tuple[int, int]] = (1, 5)
    FLEXIBLE_FROM: ClassVar[int] = 2
    FIELDS: ClassVar[tuple[Field, ...]] = (Field("topics", Array(DescribableLogDirTopic), "0+", nullable="0+"),)

    topics: list[DescribableLogDirTopic] | None = field(default_factory=list)
