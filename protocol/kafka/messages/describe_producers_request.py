"""Kafka's ``DescribeProducersRequest``, made from ``schemas/DescribeProducersRequest.json`` by
``tests/protocol/kafka/message_modules.py``; not to be edited by hand."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import ClassVar

from protocol.kafka.schema import INT32, STRING, Array, Field, Message, Structure


@dataclass(slots=True)
class TopicRequest(Structure):
    """A part of ``DescribeProducersRequest``; the schema says what each field means."""

    FIELDS: ClassVar[tuple[Field, ...]] = (
        Field("name", STRING, "0+"),
        Field("partition_indexes", Array(INT32), "0+"),
    )

    name: str = ""
    partition_indexes: list[int] = field(default_factory=list)


@dataclass(slots=True)
class DescribeProducersRequest(Message):
    """The message; the schema says what each field means."""

    API_KEY: ClassVar[int] = 61
    VERSIONS: ClassVar[tuple[int, int]] = (0, 0)
    FLEXIBLE_FROM: ClassVar[int] = 0
    FIELDS: ClassVar[tuple[Field, ...]] = (Field("topics", Array(TopicRequest), "0+"),)

    topics: list[TopicRequest] = field(default_factory=list)
