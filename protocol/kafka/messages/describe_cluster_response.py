"""Kafka's ``DescribeClusterResponse``, made from ``schemas/DescribeClusterResponse.json`` by
``tests/protocol/kafka/message_modules.py``; not to be edited by hand."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import ClassVar

from protocol.kafka.schema import BOOL, INT8, INT16, INT32, STRING, Array, Field, Message, Structure


@dataclass(slots=True)
class DescribeClusterBroker(Structure):
    """A part of ``DescribeClusterResponse``; the schema says what each field means."""

    FIELDS: ClassVar[tuple[Field, ...]] = (
        Field("broker_id", INT32, "0+"),
        Field("host", STRING, "0+"),
        Field("port", INT32, "0+"),
        Field("rack", STRING, "0+", nullable="0+"),
        Field("is_fenced", BOOL, "2+"),
    )

    broker_id: int = 0
    host: str = ""
    port: int = 0
    rack: str | None = None
    is_fenced: bool = False


@dataclass(slots=True)
class DescribeClusterResponse(Message):
    """The message; the schema says what each field means."""

    API_KEY: ClassVar[int] = 60
    VERSIONS: ClassVar[tuple[int, int]] = (0, 2)
    FLEXIBLE_FROM: ClassVar[int] = 0
    FIELDS: ClassVar[tuple[Field, ...]] = (
        Field("throttle_time_ms", INT32, "0+"),
        Field("error_code", INT16, "0+"),
        Field("error_message", STRING, "0+", nullable="0+"),
        Field("endpoint_type", INT8, "1+"),
        Field("cluster_id", STRING, "0+"),
        Field("controller_id", INT32, "0+"),
        Field("brokers", Array(DescribeClusterBroker), "0+"),
        Field("cluster_authorized_operations", INT32, "0+"),
    )

    throttle_time_ms: int = 0
    error_code: int = 0
    error_message: str | None = None
    endpoint_type: int = 1
    cluster_id: str = ""
    controller_id: int = -1
    brokers: list[DescribeClusterBroker] = field(default_factory=list)
    cluster_authorized_operations: int = -2147483648
