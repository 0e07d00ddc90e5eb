"""Kafka's ``DescribeGroupsResponse``, made from ``schemas/DescribeGroupsResponse.json`` by
``tests/protocol/kafka/message_modules.py``; not to be edited by hand."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import ClassVar

from protocol.kafka.schema import BYTES, INT16, INT32, STRING, Array, Field, Message, Structure


@dataclass(slots=True)
class DescribedGroupMember(Structure):
    """A part of ``DescribeGroupsResponse``; the schema says what each field means."""

    FIELDS: ClassVar[tuple[Field, ...]] = (
        Field("member_id", STRING, "0+"),
        Field("group_instance_id", STRING, "4+", nullable="4+", ignorable=True),
        Field("client_id", STRING, "0+"),
        Field("client_host", STRING, "0+"),
        Field("member_metadata", BYTES, "0+"),
        Field("member_assignment", BYTES, "0+"),
    )

    member_id: str = ""
    group_instance_id: str | None = None
    client_id: str = ""
    client_host: str = ""
    member_metadata: bytes = b""
    member_assignment: bytes = b""


@dataclass(slots=True)
class DescribedGroup(Structure):
    """A part of ``DescribeGroupsResponse``; the schema says what each field means."""

    FIELDS: ClassVar[tuple[Field, ...]] = (
        Field("error_code", INT16, "0+"),
        Field("error_message", STRING, "6+", nullable="6+"),
        Field("group_id", STRING, "0+"),
        Field("group_state", STRING, "0+"),
        Field("protocol_type", STRING, "0+"),
        Field("protocol_data", STRING, "0+"),
        Field("members", Array(DescribedGroupMember), "0+"),
        Field("authorized_operations", INT32, "3+"),
    )

    error_code: int = 0
    error_message: str | None = None
    group_id: str = ""
    group_state: str = ""
    protocol_type: str = ""
    protocol_data: str = ""
    members: list[DescribedGroupMember] = field(default_factory=list)
    authorized_operations: int = -2147483648


@dataclass(slots=True)
class DescribeGroupsResponse(Message):
    """The message; the schema says what each field means."""

    API_KEY: ClassVar[int] = 15
    VERSIONS: ClassVar[tuple[int, int]] = (0, 6)
    FLEXIBLE_FROM: ClassVar[int] = 5
    FIELDS: ClassVar[tuple[Field, ...]] = (
        Field("throttle_time_ms", INT32, "1+", ignorable=True),
        Field("groups", Array(DescribedGroup), "0+"),
    )

    throttle_time_ms: int = 0
    groups: list[DescribedGroup] = field(default_factory=list)
