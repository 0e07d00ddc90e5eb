"""Kafka's ``DescribeLogDirsResponse``, made from ``schemas/DescribeLogDirsResponse.json`` by
``tests/protocol/kafka/message_modules.py``; not to be edited by hand."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import ClassVar

from protocol.kafka.schema import BOOL, INT16, INT32, INT64, STRING, Array, Field, Message, Structure


@dataclass(slots=True)
class DescribeLogDirsPartition(Structure):
    """A part of ``DescribeLogDirsResponse``; the schema says what each field means."""

    FIELDS: ClassVar[tuple[Field, ...]] = (
        Field("partition_index", INT32, "0+"),
        Field("partition_size", INT64, "0+"),
        Field("offset_lag", INT64, "0+"),
        Field("is_future_key", BOOL, "0+"),
    )

    partition_index: int = 0
    partition_size: int = 0
    offset_lag: int = 0
    is_future_key: bool = False


@dataclass(slots=True)
class DescribeLogDirsTopic(Structure):
    """A part of ``DescribeLogDirsResponse``; the schema says what each field means."""

    FIELDS: ClassVar[tuple[Field, ...]] = (
        Field("name", STRING, "0+"),
        Field("partitions", Array(DescribeLogDirsPartition), "0+"),
    )

    name: str = ""
    partitions: list[DescribeLogDirsPartition] = field(default_factory=list)


@dataclass(slots=True)
class DescribeLogDirsResult(Structure):
    """A part of ``DescribeLogDirsResponse``; the schema says what each field means."""

    FIELDS: ClassVar[tuple[Field, ...]] = (
        Field("error_code", INT16, "0+"),
        Field("log_dir", STRING, "0+"),
        Field("topics", Array(DescribeLogDirsTopic), "0+"),
        Field("total_bytes", INT64, "4+", ignorable=True),
        Field("usable_bytes", INT64, "4+", ignorable=True),
        Field("is_cordoned", BOOL, "5+", ignorable=True),
    )

    error_code: int = 0
    log_dir: str = ""
    topics: list[DescribeLogDirsTopic] = field(default_factory=list)
    total_bytes: int = -1
    usable_bytes: int = -1
    is_cordoned: bool = False


@dataclass(slots=True)
class DescribeLogDirsResponse(Message):
    """The message; the schema says what each field means."""

    API_KEY: ClassVar[int] = 35
    VERSIONS: ClassVar[tuple[int, int]] = (1, 5)
    FLEXIBLE_FROM: ClassVar[int] = 2
    FIELDS: ClassVar[tuple[Field, ...]] = (
        Field("throttle_time_ms", INT32, "0+"),
        Field("error_code", INT16, "3+", ignorable=True),
        Field("results", Array(DescribeLogDirsResult), "0+"),
    )

    throttle_time_ms: int = 0
    error_code: int = 0
    results: list[DescribeLogDirsResult] = field(default_factory=list)
