"""Kafka's ``DescribeClusterRequest``, made from ``schemas/DescribeClusterRequest.json`` by
``tests/protocol/kafka/message_modules.py``; not to be edited by hand."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from protocol.kafka.schema import BOOL, INT8, Field, Message


@dataclass(slots=True)
class DescribeClusterRequest(Message):
    """The message; the schema says what each field means."""

    API_KEY: ClassVar[int] = 60
    VERSIONS: ClassVar[tuple[int, int]] = (0, 2)
    FLEXIBLE_FROM: ClassVar[int] = 0
    FIELDS: ClassVar[tuple[Field, ...]] = (
        Field("include_cluster_authorized_operations", BOOL, "0+"),
        Field("endpoint_type", INT8, "1+"),
        Field("include_fenced_brokers", BOOL, "2+"),
    )

    include_cluster_authorized_operations: bool = False
    endpoint_type: int = 1
    include_fenced_brokers: bool = False
