"""Kafka's ``ApiVersionsResponse``, made from ``schemas/ApiVersionsResponse.json`` by
``tests/protocol/kafka/message_modules.py``; not to be edited by hand."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import ClassVar

from protocol.kafka.schema import BOOL, INT16, INT32, INT64, STRING, Array, Field, Message, Structure


@dataclass(slots=True)
class ApiVersion(Structure):
    """A part of ``ApiVersionsResponse``; the schema says what each field means."""

    FIELDS: ClassVar[tuple[Field, ...]] = (
        Field("api_key", INT16, "0+"),
        Field("min_version", INT16, "0+"),
        Field("max_version", INT16, "0+"),
    )

    api_key: int = 0
    min_version: int = 0
    max_version: int = 0


@dataclass(slots=True)
class SupportedFeatureKey(Structure):
    """A part of ``ApiVersionsResponse``; the schema says what each field means."""

    FIELDS: ClassVar[tuple[Field, ...]] = (
        Field("name", STRING, "3+"),
        Field("min_version", INT16, "3+"),
        Field("max_version", INT16, "3+"),
    )

    name: str = ""
    min_version: int = 0
    max_version: int = 0


@dataclass(slots=True)
class FinalizedFeatureKey(Structure):
    """A part of ``ApiVersionsResponse``; the schema says what each field means."""

    FIELDS: ClassVar[tuple[Field, ...]] = (
        Field("name", STRING, "3+"),
        Field("max_version_level", INT16, "3+"),
        Field("min_version_level", INT16, "3+"),
    )

    name: str = ""
    max_version_level: int = 0
    min_version_level: int = 0


@dataclass(slots=True)
class ApiVersionsResponse(Message):
    """The message; the schema says what each field means."""

    API_KEY: ClassVar[int] = 18
    VERSIONS: ClassVar[tuple[int, int]] = (0, 5)
    FLEXIBLE_FROM: ClassVar[int] = 3
    FIELDS: ClassVar[tuple[Field, ...]] = (
        Field("error_code", INT16, "0+"),
        Field("api_keys", Array(ApiVersion), "0+"),
        Field("throttle_time_ms", INT32, "1+", ignorable=True),
        Field("supported_features", Array(SupportedFeatureKey), "3+", tagged="3+", tag=0, ignorable=True),
        Field("finalized_features_epoch", INT64, "3+", tagged="3+", tag=1, ignorable=True),
        Field("finalized_features", Array(FinalizedFeatureKey), "3+", tagged="3+", tag=2, ignorable=True),
        Field("zk_migration_ready", BOOL, "3+", tagged="3+", tag=3, ignorable=True),
    )

    error_code: int = 0
    api_keys: list[ApiVersion] = field(default_factory=list)
    throttle_time_ms: int = 0
    supported_features: list[SupportedFeatureKey] = field(default_factory=list)
    finalized_features_epoch: int = -1
    finalized_features: list[FinalizedFeatureKey] = field(default_factory=list)
    zk_migration_ready: bool = False
