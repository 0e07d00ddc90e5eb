"""Settings that Kafka's administrators see and change: DescribeConfigs, IncrementalAlterConfigs, AlterConfigs.

Topics have Cohort's settings, which are named as Kafka's, and those of Kafka's that have no effect here: they are kept as
they were set. A broker shows the daemon's settings under Kafka's names; they change with the daemon's configuration only.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Final, NamedTuple

from coordinator.config import Settings
from coordinator.kafka.calls import KafkaCall, Translator
from coordinator.kafka.kafka_node import KafkaNode
from coordinator.log_output import get_logger
from coordinator.metadata.topic_config import KEPT_PREFIX, KEPT_SETTINGS, TOPIC_SETTINGS, OneOf, Share
from coordinator.server.call import StepsLeft
from protocol.errors import ErrorCode
from protocol.kafka.messages import alter_configs_request, incremental_alter_configs_request
from protocol.kafka.messages.alter_configs_response import AlterConfigsResourceResponse as WholeResourceResponse
from protocol.kafka.messages.alter_configs_response import AlterConfigsResponse
from protocol.kafka.messages.describe_configs_request import DescribeConfigsRequest, DescribeConfigsResource
from protocol.kafka.messages.describe_configs_response import (
    DescribeConfigsResourceResult,
    DescribeConfigsResponse,
    DescribeConfigsResult,
    DescribeConfigsSynonym,
)
from protocol.kafka.messages.incremental_alter_configs_response import (
    AlterConfigsResourceResponse,
    IncrementalAlterConfigsResponse,
)
from protocol.messages import configs as native

log = get_logger()

Resource = incremental_alter_configs_request.AlterConfigsResource | alter_configs_request.AlterConfigsResource

_TOPIC: Final = 2
_BROKER: Final = 4
_KINDS: Final = {_BROKER: "broker", 8: "broker logger", 16: "client metrics", 32: "group"}
_OF_THE_TOPIC: Final = 1
_OF_THE_FILE: Final = 4
_DEFAULT: Final = 5
_APPEND: Final = 2
_SUBTRACT: Final = 3
_TYPES_SINCE: Final = 3
"""The version of DescribeConfigs that tells types and documentation (KIP-569)."""

_BOOLEAN, _STRING, _INT, _LONG, _DOUBLE, _LIST = 1, 2, 3, 5, 6, 7


class _Setting(NamedTuple):
    """A setting as DescribeConfigs shows it."""

    name: str
    value: str
    source: int
    kind: int
    read_only: bool = False


class _BrokerSetting(NamedTuple):
    """A field of ``Settings`` under Kafka's name; ``divisor`` brings milliseconds to Kafka's unit."""

    name: str
    field: str
    kind: int
    divisor: int = 1


_BROKER_SETTINGS: Final = (
    _BrokerSetting("auto.create.topics.enable", "kafka_auto_create_topics", _BOOLEAN),
    _BrokerSetting("broker.id", "node_id", _INT),
    _BrokerSetting("broker.rack", "rack", _STRING),
    _BrokerSetting("default.replication.factor", "default_replication_factor", _INT),
    _BrokerSetting("group.initial.rebalance.delay.ms", "initial_rebalance_delay_ms", _INT),
    _BrokerSetting("group.max.session.timeout.ms", "max_session_timeout_ms", _INT),
    _BrokerSetting("group.max.size", "group_max_size", _INT),
    _BrokerSetting("group.min.session.timeout.ms", "kafka_min_session_timeout_ms", _INT),
    _BrokerSetting("log.cleaner.delete.retention.ms", "delete_retention_ms", _LONG),
    _BrokerSetting("log.cleaner.max.compaction.lag.ms", "max_compaction_lag_ms", _LONG),
    _BrokerSetting("log.cleaner.min.cleanable.ratio", "min_cleanable_dirty_ratio", _DOUBLE),
    _BrokerSetting("log.cleaner.min.compaction.lag.ms", "min_compaction_lag_ms", _LONG),
    _BrokerSetting("log.cleanup.policy", "cleanup_policy", _LIST),
    _BrokerSetting("log.dirs", "data_dir", _STRING),
    _BrokerSetting("log.message.timestamp.type", "message_timestamp_type", _STRING),
    _BrokerSetting("log.retention.bytes", "retention_bytes", _LONG),
    _BrokerSetting("log.retention.ms", "retention_ms", _LONG),
    _BrokerSetting("log.roll.ms", "segment_ms", _LONG),
    _BrokerSetting("log.segment.bytes", "segment_bytes", _INT),
    _BrokerSetting("max.connections", "max_connections", _INT),
    _BrokerSetting("message.max.bytes", "max_message_bytes", _INT),
    _BrokerSetting("min.insync.replicas", "min_insync_replicas", _INT),
    _BrokerSetting("node.id", "node_id", _INT),
    _BrokerSetting("num.partitions", "default_partitions", _INT),
    _BrokerSetting("offset.metadata.max.bytes", "offset_metadata_max_bytes", _INT),
    _BrokerSetting("offsets.retention.minutes", "offsets_retention_ms", _INT, 60_000),
    _BrokerSetting("offsets.topic.replication.factor", "offsets_replication_factor", _INT),
    _BrokerSetting("replica.lag.time.max.ms", "replica_lag_time_max_ms", _LONG),
    _BrokerSetting("socket.request.max.bytes", "max_frame_bytes", _INT),
    _BrokerSetting("transaction.max.timeout.ms", "transaction_max_timeout_ms", _INT),
    _BrokerSetting("transactional.id.expiration.ms", "transactional_id_expiration_ms", _INT),
)
_FIXED: Final = (_Setting("delete.topic.enable", "true", _DEFAULT, _BOOLEAN, read_only=True),)
"""What holds whatever the daemon's settings are, and what clients look at."""


def describe_configs(node: KafkaNode) -> Translator:
    """The settings of topics and of this node."""
    handler = node.handlers[native.DescribeConfigsRequest]

    def handle(call: KafkaCall) -> StepsLeft:
        request: DescribeConfigsRequest = call.message
        topics = tuple(each.resource_name for each in request.resources if each.resource_type == _TOPIC)
        return call.ask(handler, native.DescribeConfigsRequest(topics), lambda response: answer(call, response))

    def answer(call: KafkaCall, response: native.DescribeConfigsResponse) -> None:
        request: DescribeConfigsRequest = call.message
        topics = {topic.name: topic for topic in response.results}
        distinct = {(each.resource_type, each.resource_name): each for each in request.resources}
        results = []
        for resource in distinct.values():
            if resource.resource_type == _TOPIC:
                result = _topic(node, resource, topics[resource.resource_name])
            else:
                result = _broker(call, node, resource)
            _fit(result, resource, request, call.version)
            results.append(result)
        call.reply(DescribeConfigsResponse(results=results))

    def refusal(request: DescribeConfigsRequest, version: int, code: ErrorCode, text: str) -> DescribeConfigsResponse:
        return DescribeConfigsResponse(
            results=[
                DescribeConfigsResult(code, text, each.resource_type, each.resource_name) for each in request.resources
            ]
        )

    return Translator(DescribeConfigsRequest, handle, refusal)


def _topic(
    node: KafkaNode, resource: DescribeConfigsResource, topic: native.DescribedTopicConfigs
) -> DescribeConfigsResult:
    if topic.error_code:
        return DescribeConfigsResult(topic.error_code, topic.error_message, _TOPIC, resource.resource_name)
    known = node.node.catalog.topics.get(topic.name)
    own: Mapping[str, object] = {} if known is None else known.config
    shown = [_Setting(each.name, each.value, config_source(each), _topic_kind(each.name)) for each in topic.configs]
    for name, default in KEPT_SETTINGS.items():
        value = own.get(KEPT_PREFIX + name)
        source = _DEFAULT if value is None else _OF_THE_TOPIC
        shown.append(_Setting(name, default if value is None else str(value), source, _kept_kind(default)))
    return DescribeConfigsResult(0, None, _TOPIC, resource.resource_name, _described(sorted(shown)))


def _broker(call: KafkaCall, node: KafkaNode, resource: DescribeConfigsResource) -> DescribeConfigsResult:
    """This node's settings, or those of all nodes, of which none can be set; other nodes tell their own."""
    name = resource.resource_name
    if resource.resource_type == _BROKER and name == str(node.node.settings.node_id):
        shown = [*_of_this_node(node.node.settings), *_listeners(call, node)]
        return DescribeConfigsResult(0, None, _BROKER, name, _described(sorted(shown)))
    if resource.resource_type == _BROKER and not name:
        return DescribeConfigsResult(0, None, _BROKER, name)
    if resource.resource_type == _BROKER:
        text = f"this is node {node.node.settings.node_id}; ask node {name[:60]!r} for its settings"
    else:
        text = (
            f"settings of {_KINDS.get(resource.resource_type, 'unknown')} resources are not there; topic and broker are"
        )
    return DescribeConfigsResult(ErrorCode.INVALID_REQUEST, text, resource.resource_type, name)


def _listeners(call: KafkaCall, node: KafkaNode) -> Iterator[_Setting]:
    """What the client of this call is told of this node's port: the daemon has it from several settings."""
    for broker in node.brokers(call).values():
        if broker.node_id == node.node.settings.node_id:
            told = f"PLAINTEXT://{broker.host}:{broker.port}"
            yield _Setting("advertised.listeners", told, _OF_THE_FILE, _LIST, read_only=True)


def _of_this_node(settings: Settings) -> Iterator[_Setting]:
    for entry in _BROKER_SETTINGS:
        value, default = getattr(settings, entry.field), getattr(Settings(), entry.field)
        source = _DEFAULT if value == default else _OF_THE_FILE
        yield _Setting(entry.name, _text(value, entry), source, entry.kind, read_only=True)
    yield from _FIXED


def _text(value: object, entry: _BrokerSetting) -> str:
    if entry.kind == _BOOLEAN:
        return "true" if value == "yes" else "false"
    return str(value // entry.divisor) if isinstance(value, int) else str(value)


def _words(policy: str) -> list[str]:
    return policy.split(",") if policy else []


def _topic_kind(name: str) -> int:
    kind = TOPIC_SETTINGS[name]
    if isinstance(kind, OneOf):
        return _LIST if name == "cleanup.policy" else _STRING
    if isinstance(kind, Share):
        return _DOUBLE
    return _INT if name in ("max.message.bytes", "min.insync.replicas", "segment.bytes") else _LONG


def _kept_kind(default: str) -> int:
    if default in ("true", "false"):
        return _BOOLEAN
    return _LONG if default.lstrip("-").isdecimal() else _STRING


def _described(settings: list[_Setting]) -> list[DescribeConfigsResourceResult]:
    return [
        DescribeConfigsResourceResult(each.name, each.value, each.read_only, each.source, False, [], each.kind, None)
        for each in settings
    ]


def _fit(
    result: DescribeConfigsResult, resource: DescribeConfigsResource, request: DescribeConfigsRequest, version: int
) -> None:
    """Leaves what was asked for, and what the version has a place for."""
    keys = resource.configuration_keys
    if keys:  # nothing is everything, as Kafka takes it
        wanted = set(keys)
        result.configs = [each for each in result.configs if each.name in wanted]
    for each in result.configs:
        if version < _TYPES_SINCE:
            each.config_type, each.documentation = 0, ""
        if request.include_synonyms:
            each.synonyms = [DescribeConfigsSynonym(each.name, each.value, each.config_source)]


class _Alteration:
    """Changes of topics' settings, of either API."""

    def __init__(self, node: KafkaNode) -> None:
        self._node = node
        self._handler = node.handlers[native.IncrementalAlterConfigsRequest]

    def incremental(self, call: KafkaCall) -> StepsLeft:
        """Settings that are not named stay as they are (KIP-339)."""
        request: incremental_alter_configs_request.IncrementalAlterConfigsRequest = call.message
        resources = {
            resource.resource_name: tuple(
                self._change(resource.resource_name, each.name, each.config_operation, each.value)
                for each in resource.configs
            )
            for resource in request.resources
            if resource.resource_type == _TOPIC
        }
        return self._ask(call, resources, request.validate_only)

    def whole(self, call: KafkaCall) -> StepsLeft:
        """Settings that are not named go back to the daemon's."""
        request: alter_configs_request.AlterConfigsRequest = call.message
        resources = {}
        for resource in request.resources:
            if resource.resource_type == _TOPIC:
                name = resource.resource_name
                changes = [self._change(name, each.name, native.SET, each.value) for each in resource.configs]
                kept = {change.name for change in changes}
                gone = [native.AlterableConfig(each, native.DELETE) for each in sorted(self._own(name).keys() - kept)]
                resources[name] = (*changes, *gone)
        return self._ask(call, resources, request.validate_only)

    def _own(self, topic: str) -> Mapping[str, object]:
        known = self._node.node.catalog.topics.get(topic)
        return {} if known is None else known.config

    def _change(self, topic: str, name: str, operation: int, value: str | None) -> native.AlterableConfig:
        stored = stored_name(self._node, topic, name)
        if operation not in (_APPEND, _SUBTRACT):
            return native.AlterableConfig(stored, operation, value)
        if value is None:
            return native.AlterableConfig(stored, native.SET, None)  # which is refused
        if name == "cleanup.policy":
            catalog = self._node.node.catalog
            known = catalog.topics.get(topic)
            now = _words(catalog.config(known).cleanup_policy) if known is not None else []
            given = _words(value)
            wanted = (
                [*now, *(each for each in given if each not in now)]
                if operation == _APPEND
                else [each for each in now if each not in given]
            )
            return native.AlterableConfig(stored, native.SET, ",".join(wanted))
        return native.AlterableConfig(stored, operation, value)

    def _ask(
        self, call: KafkaCall, resources: Mapping[str, tuple[native.AlterableConfig, ...]], validate_only: bool
    ) -> StepsLeft:
        asked = native.IncrementalAlterConfigsRequest(
            tuple(native.AlterableTopicConfigs(name, changes) for name, changes in resources.items()), validate_only
        )
        return call.ask(self._handler, asked, lambda response: self._answer(call, response))

    def _answer(self, call: KafkaCall, response: native.IncrementalAlterConfigsResponse) -> None:
        topics = {topic.name: topic for topic in response.responses}
        results = []
        for resource in {(each.resource_type, each.resource_name): each for each in call.message.resources}.values():
            if resource.resource_type == _TOPIC:
                done = topics[resource.resource_name]
                results.append((done.error_code, done.error_message or None, resource))
            else:
                kind = _KINDS.get(resource.resource_type, "unknown")
                text = f"settings of {kind} resources cannot be changed by clients; those of topics can"
                results.append((ErrorCode.INVALID_REQUEST, text, resource))
        call.reply(_altered(call.message, results))


def _altered(
    request: object, results: list[tuple[int, str | None, Resource]]
) -> IncrementalAlterConfigsResponse | AlterConfigsResponse:
    if isinstance(request, alter_configs_request.AlterConfigsRequest):
        return AlterConfigsResponse(
            responses=[
                WholeResourceResponse(code, text, each.resource_type, each.resource_name)
                for code, text, each in results
            ]
        )
    return IncrementalAlterConfigsResponse(
        responses=[
            AlterConfigsResourceResponse(code, text, each.resource_type, each.resource_name)
            for code, text, each in results
        ]
    )


def alter_configs(node: KafkaNode) -> Mapping[int, Translator]:
    """AlterConfigs (33) and IncrementalAlterConfigs (44), by API key."""
    alteration = _Alteration(node)

    def refusal(
        request: alter_configs_request.AlterConfigsRequest
        | incremental_alter_configs_request.IncrementalAlterConfigsRequest,
        version: int,
        code: ErrorCode,
        text: str,
    ) -> IncrementalAlterConfigsResponse | AlterConfigsResponse:
        return _altered(request, [(code, text, each) for each in request.resources])

    return {
        33: Translator(alter_configs_request.AlterConfigsRequest, alteration.whole, refusal),
        44: Translator(
            incremental_alter_configs_request.IncrementalAlterConfigsRequest, alteration.incremental, refusal
        ),
    }


def config_source(setting: native.DescribedConfig) -> int:
    """Kafka's number for where the value of a topic's setting comes from."""
    return _DEFAULT if setting.is_default else _OF_THE_TOPIC


def stored_name(node: KafkaNode, topic: str, name: str) -> str:
    """Under which name a topic gets a setting of Kafka's; of the first with a setting that has no effect the log tells."""
    if name not in KEPT_SETTINGS:
        return name
    if name not in node.told_without_effect:
        node.told_without_effect.add(name)
        log.info("topic_setting_without_effect", topic=topic, setting=name)
    return KEPT_PREFIX + name
