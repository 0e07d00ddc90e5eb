"""Kafka's ``DescribeConfigsRequest``, made from ``schemas/DescribeConfigsRequest.json`` by
``tests/protocol/kafka/message_modules.py``; not to be edited by hand."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import ClassVar

from protocol.kafka.schema import BOOL, INT8, STRING, Array, Field, Message, Structure


@dataclass(slots=True)
class DescribeConfigsResource(Structure):
    """A part of ``DescribeConfigsRequest``; the schema says what each field means."""

    FIELDS: ClassVar[tuple[Field, ...]] = (
        Field("resource_type", INT8, "0+"),
        Field("resource_name", STRING, "0+"),
        Field("configuration_keys", Array(STRING), "0+", nullable="0+"),
    )

    resource_type: int = 0
    resource_name: str = ""
    configuration_keys: list[str] | None = field(default_factory=list)


@dataclass(slots=True)
class DescribeConfigsRequest(Message):
    """The message; the schema says what each field means."""

    API_KEY: ClassVar[int] = 32
    VERSIONS: ClassVar[tuple[int, int]] = (1, 4)
    FLEXIBLE_FROM: ClassVar[int] = 4
    FIELDS: ClassVar[tuple[Field, ...]] = (
        Field("resources", Array(DescribeConfigsResource), "0+"),
        Field("include_synonyms", BOOL, "1+"),
        Field("include_documentation", BOOL, "3+"),
    )

    resources: list[DescribeConfigsResource] = field(default_factory=list)
    include_synonyms: bool = False
    include_documentation: bool = False
