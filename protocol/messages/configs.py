"""Messages about the settings and the logs of topics: DescribeConfigs, IncrementalAlterConfigs, DescribeLogDirs."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from protocol.codec import Int8, Int16, Int32, Int64
from protocol.messages.api import ApiKey, Request, Response, register

SET: Final = 0
DELETE: Final = 1


@dataclass(frozen=True, slots=True)
class DescribedConfig:
    """One setting as it holds; ``is_default`` when it is the daemon's and not the topic's own."""

    name: str
    value: str
    is_default: bool


@dataclass(frozen=True, slots=True)
class DescribedTopicConfigs:
    """The settings of one topic, sorted by name."""

    name: str
    error_code: Int16
    error_message: str = ""
    configs: tuple[DescribedConfig, ...] = ()


@dataclass(frozen=True, slots=True)
class DescribeConfigsResponse(Response):
    """One entry a topic asked for, in order."""

    results: tuple[DescribedTopicConfigs, ...]


@register
@dataclass(frozen=True, slots=True)
class DescribeConfigsRequest(Request):
    """Asks for every setting of topics, those that are the daemon's included. Topics are the only resource."""

    api_key = ApiKey.DESCRIBE_CONFIGS
    response = DescribeConfigsResponse

    topic_names: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class AlterableConfig:
    """One change of a setting. ``config_operation`` is 0 (set to ``value``) or 1 (delete: the daemon's holds again)."""

    name: str
    config_operation: Int8
    value: str | None = None


@dataclass(frozen=True, slots=True)
class AlterableTopicConfigs:
    """The changes of one topic's settings: all of them are made, or none."""

    name: str
    configs: tuple[AlterableConfig, ...]


@dataclass(frozen=True, slots=True)
class AlteredTopicConfigs:
    """What became of one topic's changes."""

    name: str
    error_code: Int16
    error_message: str = ""


@dataclass(frozen=True, slots=True)
class IncrementalAlterConfigsResponse(Response):
    """One entry a topic asked for, in order."""

    responses: tuple[AlteredTopicConfigs, ...]


@register
@dataclass(frozen=True, slots=True)
class IncrementalAlterConfigsRequest(Request):
    """Changes settings of topics while they are in use (KIP-339). Settings that are not named stay as they are."""

    api_key = ApiKey.INCREMENTAL_ALTER_CONFIGS
    response = IncrementalAlterConfigsResponse

    resources: tuple[AlterableTopicConfigs, ...]
    validate_only: bool = False
    timeout_ms: Int32 = 30_000


@dataclass(frozen=True, slots=True)
class DescribedLog:
    """The log of one partition on this node.

    ``size`` is in bytes; ``dirty_percent`` is the share of closed segments that compaction has not seen; ``fault`` tells why
    the last retention or compaction failed, and is empty when it did not. ``log_end_offset`` is up to where this node has
    records, acknowledged or not.
    """

    partition_index: Int32
    error_code: Int16
    error_message: str = ""
    log_start_offset: Int64 = -1
    high_watermark: Int64 = -1
    size: Int64 = -1
    segments: Int32 = -1
    dirty_percent: Int32 = -1
    fault: str = ""
    log_end_offset: Int64 = -1


@dataclass(frozen=True, slots=True)
class DescribedTopicLogs:
    """The logs of one topic, by partition."""

    name: str
    error_code: Int16
    error_message: str = ""
    partitions: tuple[DescribedLog, ...] = ()


@dataclass(frozen=True, slots=True)
class DescribeLogDirsResponse(Response):
    """One entry a topic asked for, in order."""

    results: tuple[DescribedTopicLogs, ...]


@register
@dataclass(frozen=True, slots=True)
class DescribeLogDirsRequest(Request):
    """Asks what the logs of topics hold on this node, and how retention and compaction of them go."""

    api_key = ApiKey.DESCRIBE_LOG_DIRS
    response = DescribeLogDirsResponse

    topic_names: tuple[str, ...]
