"""Kafka's ``DescribeConfigsResponse``, made from ``schemas/DescribeConfigsResponse.json`` by
``tests/protocol/kafka/message_modules.py``; not to be edited by hand."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import ClassVar

from protocol.kafka.schema import BOOL, INT8, INT16, INT32, STRING, Array, Field, Message, Structure


@dataclass(slots=True)
class DescribeConfigsSynonym(Structure):
    """A part of ``DescribeConfigsResponse``; the schema says what each field means."""

    FIELDS: ClassVar[tuple[Field, ...]] = (
        Field("name", STRING, "1+"),
        Field("value", STRING, "1+", nullable="0+"),
        Field("source", INT8, "1+"),
    )

    name: str = ""
    value: str | None = ""
    source: int = 0


@dataclass(slots=True)
class DescribeConfigsResourceResult(Structure):
    """A part of ``DescribeConfigsResponse``; the schema says what each field means."""

    FIELDS: ClassVar[tuple[Field, ...]] = (
        Field("name", STRING, "0+"),
        Field("value", STRING, "0+", nullable="0+"),
        Field("read_only", BOOL, "0+"),
        Field("config_source", INT8, "1+", ignorable=True),
        Field("is_sensitive", BOOL, "0+"),
        Field("synonyms", Array(DescribeConfigsSynonym), "1+", ignorable=True),
        Field("config_type", INT8, "3+", ignorable=True),
        Field("documentation", STRING, "3+", nullable="0+", ignorable=True),
    )

    name: str = ""
    value: str | None = ""
    read_only: bool = False
    config_source: int = -1
    is_sensitive: bool = False
    synonyms: list[DescribeConfigsSynonym] = field(default_factory=list)
    config_type: int = 0
    documentation: str | None = ""


@dataclass(slots=True)
class DescribeConfigsResult(Structure):
    """A part of ``DescribeConfigsResponse``; the schema says what each field means."""

    FIELDS: ClassVar[tuple[Field, ...]] = (
        Field("error_code", INT16, "0+"),
        Field("error_message", STRING, "0+", nullable="0+"),
        Field("resource_type", INT8, "0+"),
        Field("resource_name", STRING, "0+"),
        Field("configs", Array(DescribeConfigsResourceResult), "0+"),
    )

    error_code: int = 0
    error_message: str | None = ""
    resource_type: int = 0
    resource_name: str = ""
    configs: list[DescribeConfigsResourceResult] = field(default_factory=list)


@dataclass(slots=True)
class DescribeConfigsResponse(Message):
    """The message; the schema says what each field means."""

    API_KEY: ClassVar[int] = 32
    VERSIONS: ClassVar[tuple[int, int]] = (1, 4)
    FLEXIBLE_FROM: ClassVar[int] = 4
    FIELDS: ClassVar[tuple[Field, ...]] = (
        Field("throttle_time_ms", INT32, "0+"),
        Field("results", Array(DescribeConfigsResult), "0+"),
    )

    throttle_time_ms: int = 0
    results: list[DescribeConfigsResult] = field(default_factory=list)
