"""Kafka's ``IncrementalAlterConfigsRequest``, made from ``schemas/IncrementalAlterConfigsRequest.json`` by
``tests/protocol/kafka/message_modules.py``; not to be edited by hand."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import ClassVar

from protocol.kafka.schema import BOOL, INT8, STRING, Array, Field, Message, Structure


@dataclass(slots=True)
class AlterableConfig(Structure):
    """A part of ``IncrementalAlterConfigsRequest``; the schema says what each field means."""

    FIELDS: ClassVar[tuple[Field, ...]] = (
        Field("name", STRING, "0+"),
        Field("config_operation", INT8, "0+"),
        Field("value", STRING, "0+", nullable="0+"),
    )

    name: str = ""
    config_operation: int = 0
    value: str | None = ""


@dataclass(slots=True)
class AlterConfigsResource(Structure):
    """A part of ``IncrementalAlterConfigsRequest``; the schema says what each field means."""

    FIELDS: ClassVar[tuple[Field, ...]] = (
        Field("resource_type", INT8, "0+"),
        Field("resource_name", STRING, "0+"),
        Field("configs", Array(AlterableConfig), "0+"),
    )

    resource_type: int = 0
    resource_name: str = ""
    configs: list[AlterableConfig] = field(default_factory=list)


@dataclass(slots=True)
class IncrementalAlterConfigsRequest(Message):
    """The message; the schema says what each field means."""

    API_KEY: ClassVar[int] = 44
    VERSIONS: ClassVar[tuple[int, int]] = (0, 1)
    FLEXIBLE_FROM: ClassVar[int] = 1
    FIELDS: ClassVar[tuple[Field, ...]] = (
        Field("resources", Array(AlterConfigsResource), "0+"),
        Field("validate_only", BOOL, "0+"),
    )

    resources: list[AlterConfigsResource] = field(default_factory=list)
    validate_only: bool = False
