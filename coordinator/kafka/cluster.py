"""What Kafka's clients ask of the cluster: ApiVersions, Metadata, FindCoordinator, DescribeCluster."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from functools import partial
from typing import Final

from coordinator.kafka.calls import Api, KafkaCall, KafkaRequest, Translator
from coordinator.kafka.codes import CLUSTER_OPERATIONS, TOPIC_OPERATIONS, KafkaCode
from coordinator.kafka.kafka_node import NO_TOPIC_ID, Broker, KafkaNode, packed_topic_id
from coordinator.kafka.topic_descriptions import PARTITIONS_PER_STEP, described_partitions, is_topic_name
from coordinator.log_output import get_logger
from coordinator.metadata.catalog import Topic
from coordinator.server.call import StepsLeft
from coordinator.server.dispatch import STEP
from coordinator.server.errors_within import errors_within
from protocol.errors import ErrorCode
from protocol.kafka.encoding import encode
from protocol.kafka.messages.api_versions_request import ApiVersionsRequest
from protocol.kafka.messages.api_versions_response import (
    ApiVersion,
    ApiVersionsResponse,
    FinalizedFeatureKey,
    SupportedFeatureKey,
)
from protocol.kafka.messages.describe_cluster_request import DescribeClusterRequest
from protocol.kafka.messages.describe_cluster_response import DescribeClusterBroker, DescribeClusterResponse
from protocol.kafka.messages.find_coordinator_request import FindCoordinatorRequest
from protocol.kafka.messages.find_coordinator_response import Coordinator, FindCoordinatorResponse
from protocol.kafka.messages.metadata_request import MetadataRequest, MetadataRequestTopic
from protocol.kafka.messages.metadata_response import (
    MetadataResponse,
    MetadataResponseBroker,
    MetadataResponseTopic,
)
from protocol.messages import cluster as native
from protocol.messages import topics as native_topics
from protocol.messages.api import ApiKey

log = get_logger()

_TOLD_FIRST: Final = {int(ApiKey.PRODUCE): 0}
"""First versions that clients are told where they are not those that are served. Clients of librdkafka compress only if
Produce begins at 0, else silently not, though nobody writes so old a version (KAFKA-18659)."""

_NULLABLE_NAME_SINCE: Final = 12
"""The version of Metadata whose answer may leave a name out (KIP-516)."""
_KEYS_SINCE: Final = 4
"""The version of FindCoordinator with several keys (KIP-699)."""
_CLIPPED: Final = 60
_TRANSACTION_VERSION: Final = ("transaction.version", 2)
"""Transactions have an epoch each, and leaders make partitions part of them: the second part of KIP-890."""
_AUTO_CREATION_MS: Final = 15_000
_FEWEST_KEPT: Final = 16
"""Topics of an answer that is kept: others are made as quickly."""
_MOST_KEPT: Final = 3
"""Versions of which the last answer is kept: clients of one kind ask in the same."""
_MOST_KEPT_BYTES: Final = 4 * 1024 * 1024
"""Of one: 90,000 partitions with three replicas each."""


def api_versions(served: Mapping[int, Api]) -> Translator:
    """What the port speaks: ``served``."""

    def told(code: ErrorCode) -> ApiVersionsResponse:
        keys = [ApiVersion(api.key, _TOLD_FIRST.get(api.key, api.first), api.last) for api in served.values()]
        name, level = _TRANSACTION_VERSION
        return ApiVersionsResponse(
            code,
            keys,
            supported_features=[SupportedFeatureKey(name, 1, level)],
            finalized_features_epoch=0,  # one for all nodes: it is not changed while they run
            finalized_features=[FinalizedFeatureKey(name, level, level)],
        )

    def handle(call: KafkaCall) -> None:
        request, message = call.request, call.message
        unknown = isinstance(request, KafkaRequest) and request.is_unknown_version
        if message.client_software_name:
            call.connection.introduce(message.client_software_name, message.client_software_version)
            log.debug(
                "kafka_client",
                peer=call.connection.peer,
                client_id=call.client_id[:_CLIPPED],
                name=message.client_software_name[:_CLIPPED],
                version=message.client_software_version[:_CLIPPED],
            )
        call.reply(told(ErrorCode.UNSUPPORTED_VERSION if unknown else ErrorCode.NONE))

    return Translator(ApiVersionsRequest, handle, lambda request, version, code, text: told(code))


class _Metadata:
    """Nodes, topics, and who leads what."""

    def __init__(self, node: KafkaNode) -> None:
        self._node = node
        self._catalog = node.node.catalog
        self._creates = node.node.settings.kafka_auto_create_topics == "yes"
        self._whole = _WholeAnswers()

    def handle(self, call: KafkaCall) -> Iterator[None] | None:
        """Answers once topics are made that are not there and may be."""
        request: MetadataRequest = call.message
        if self._node.closes_stranded(call):
            return None
        wanted = request.topics
        if wanted is None or (call.version == 0 and not wanted):
            return None if _is_plain(request) and self._repeat(call) else self._answer(call, None)
        missing = self._to_create(request, wanted)
        if not missing:
            return self._answer(call, wanted)
        creation = native_topics.CreateTopicsRequest(
            tuple(native_topics.CreatableTopic(name) for name in missing), _AUTO_CREATION_MS
        )
        call.ask(self._node.handlers[native_topics.CreateTopicsRequest], creation, partial(self._created, call, wanted))
        return None

    def refusal(self, request: MetadataRequest, version: int, code: ErrorCode, text: str) -> MetadataResponse:
        """Each topic has the error."""
        topics = [MetadataResponseTopic(code, topic.name, topic.topic_id) for topic in request.topics or ()]
        return MetadataResponse(topics=topics, cluster_id=self._catalog.cluster_id, error_code=code)

    def _repeat(self, call: KafkaCall) -> bool:
        """Answers a request for all topics as the one before, if nothing has changed since; returns whether it did."""
        brokers = self._node.brokers(call)
        kept = self._whole.find(call.version, self._catalog.topics, brokers, self._node.controller(brokers))
        if kept is not None:
            call.answer_packed(b"", *kept)
        return kept is not None

    def _to_create(self, request: MetadataRequest, wanted: list[MetadataRequestTopic]) -> list[str]:
        if not (self._creates and request.allow_auto_topic_creation):
            return []
        known = self._catalog.topics
        return [
            topic.name
            for topic in {each.name: each for each in wanted}.values()
            if topic.name is not None and topic.name not in known and is_topic_name(topic.name)
        ]

    def _created(
        self, call: KafkaCall, wanted: list[MetadataRequestTopic], response: native_topics.CreateTopicsResponse
    ) -> None:
        failed = {topic.name: topic.error_code for topic in response.topics if topic.error_code}
        for name, code in failed.items():
            if code == ErrorCode.TOPIC_ALREADY_EXISTS:  # another node has made it, and this one has not heard of it yet
                failed[name] = ErrorCode.LEADER_NOT_AVAILABLE
        for _ in self._answer(call, wanted, failed):
            pass  # a client creates a few topics at a time

    def _answer(
        self, call: KafkaCall, wanted: list[MetadataRequestTopic] | None, failed: Mapping[str, int] | None = None
    ) -> Iterator[None]:
        request: MetadataRequest = call.message
        catalog, brokers = self._catalog, self._node.brokers(call)
        known, answered, done = catalog.topics, list[MetadataResponseTopic](), 0
        for topic in self._found(wanted, known, failed or {}, call.version >= _NULLABLE_NAME_SINCE):
            if isinstance(topic, Topic):
                answered.append(_described(topic, brokers.keys()))
                done += STEP + len(topic.partitions)
            else:
                answered.append(topic)
                done += STEP
            if request.include_topic_authorized_operations and answered[-1].error_code != KafkaCode.UNKNOWN_TOPIC_ID:
                answered[-1].topic_authorized_operations = TOPIC_OPERATIONS
            if done >= PARTITIONS_PER_STEP:
                done = 0
                yield
        controller = self._node.controller(brokers)
        response = MetadataResponse(
            brokers=[MetadataResponseBroker(*broker) for broker in brokers.values()],
            cluster_id=catalog.cluster_id,
            controller_id=controller,
            topics=answered,
        )
        if request.include_cluster_authorized_operations:
            response.cluster_authorized_operations = CLUSTER_OPERATIONS
        if wanted is None and _is_plain(request) and len(answered) >= _FEWEST_KEPT:
            body = b"".join(encode(response, call.version))
            if len(body) <= _MOST_KEPT_BYTES:
                errors = errors_within(response)
                self._whole.keep(call.version, known, brokers, controller, (body, errors))
                call.answer_packed(b"", body, errors)
                return
        call.reply(response)

    def _found(
        self,
        wanted: list[MetadataRequestTopic] | None,
        known: Mapping[str, Topic],
        failed: Mapping[str, int],
        nullable: bool,
    ) -> Iterator[Topic | MetadataResponseTopic]:
        """Each topic that is asked for once, or what is wrong with it."""
        if wanted is None:
            yield from (known[name] for name in sorted(known))
            return
        for name, packed_id in {(each.name, each.topic_id): None for each in wanted}:
            if name is None or packed_id != NO_TOPIC_ID:
                found = self._node.topic_of(packed_id)
                if found is None or name not in (None, "", found.name):
                    yield MetadataResponseTopic(KafkaCode.UNKNOWN_TOPIC_ID, name if nullable else name or "", packed_id)
                else:
                    yield found
            elif name in known:
                yield known[name]
            else:
                code = failed.get(name, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
                yield MetadataResponseTopic(code if is_topic_name(name) else ErrorCode.INVALID_TOPIC_EXCEPTION, name)


def _is_plain(request: MetadataRequest) -> bool:
    """Whether it asks as most clients do, without what they may do: only answers to such are kept."""
    return not (request.include_topic_authorized_operations or request.include_cluster_authorized_operations)


_Body = tuple[bytes, Mapping[int, int]]
"""An answer, encoded, and how often each error code is in it."""


class _WholeAnswers:
    """The last answers about all topics, by version: after a change of a large cluster many clients ask for them at once.

    To describe and to write 3,000 partitions takes 5 to 20 ms.
    """

    def __init__(self) -> None:
        self._kept: dict[int, tuple[Mapping[str, Topic], Mapping[int, Broker], int, _Body]] = {}

    def find(
        self, version: int, topics: Mapping[str, Topic], brokers: Mapping[int, Broker], controller: int
    ) -> _Body | None:
        """The answer of this version while it is about the same; ``topics`` is another mapping after each change."""
        kept = self._kept.get(version)
        if kept is None:
            return None
        if kept[0] is not topics or kept[1:3] != (brokers, controller):
            return None
        return kept[3]

    def keep(
        self, version: int, topics: Mapping[str, Topic], brokers: Mapping[int, Broker], controller: int, body: _Body
    ) -> None:
        """Takes the place of the one before of this version; of few versions one is kept."""
        self._kept.pop(version, None)
        while len(self._kept) >= _MOST_KEPT:
            del self._kept[next(iter(self._kept))]
        self._kept[version] = topics, brokers, controller, body


def metadata(node: KafkaNode) -> Translator:
    """See ``_Metadata``. Made of the catalog and not of the handler's answer, which is packed for Cohort's own wire."""
    translator = _Metadata(node)
    return Translator(MetadataRequest, translator.handle, translator.refusal)


def _described(topic: Topic, reached: Collection[int]) -> MetadataResponseTopic:
    return MetadataResponseTopic(
        ErrorCode.NONE,
        topic.name,
        packed_topic_id(topic.topic_id),
        topic.internal,
        described_partitions(topic, reached),
    )


class _FindCoordinator:
    """The node that coordinates each of some groups or transactional ids."""

    def __init__(self, node: KafkaNode) -> None:
        self._node = node
        self._handle = node.handlers[native.FindCoordinatorRequest]

    def handle(self, call: KafkaCall) -> StepsLeft:
        """Answers when the coordinator of each key is known."""
        request: FindCoordinatorRequest = call.message
        keys = list(dict.fromkeys(request.coordinator_keys)) if call.version >= _KEYS_SINCE else [request.key]
        found: dict[str, Coordinator] = {}
        if not keys:
            call.reply(FindCoordinatorResponse())
            return None

        def told(key: str, response: native.FindCoordinatorResponse) -> None:
            found[key] = self._found(call, key, response)
            if len(found) == len(keys):
                call.reply(_all_found([found[each] for each in keys], call.version))

        def ask(key: str) -> None:
            call.ask(self._handle, native.FindCoordinatorRequest(key, request.key_type), partial(told, key))

        return call.ask_for_each(keys, ask)

    def _found(self, call: KafkaCall, key: str, response: native.FindCoordinatorResponse) -> Coordinator:
        code, text = response.error_code, response.error_message
        broker = self._node.brokers(call).get(response.node_id)
        if code == ErrorCode.NONE and broker is None:
            code = ErrorCode.COORDINATOR_NOT_AVAILABLE
            text = f"node {response.node_id} is the coordinator, and has no port for Kafka's clients (kafka_port)"
        if code != ErrorCode.NONE or broker is None:
            return Coordinator(key, -1, "", -1, code, text)
        return Coordinator(key, broker.node_id, broker.host, broker.port, ErrorCode.NONE, None)


def find_coordinator(node: KafkaNode) -> Translator:
    """See ``_FindCoordinator``."""
    return Translator(FindCoordinatorRequest, _FindCoordinator(node).handle, _no_coordinator)


def _no_coordinator(
    request: FindCoordinatorRequest, version: int, code: ErrorCode, text: str
) -> FindCoordinatorResponse:
    keys = request.coordinator_keys if version >= _KEYS_SINCE else [request.key]
    return _all_found([Coordinator(key, -1, "", -1, code, text) for key in keys], version)


def _all_found(found: list[Coordinator], version: int) -> FindCoordinatorResponse:
    if version >= _KEYS_SINCE:
        return FindCoordinatorResponse(coordinators=found)
    only = found[0]
    return FindCoordinatorResponse(0, only.error_code, only.error_message, only.node_id, only.host, only.port)


def describe_cluster(node: KafkaNode) -> Translator:
    """The nodes that live and have a port for Kafka's clients."""

    def handle(call: KafkaCall) -> None:
        request: DescribeClusterRequest = call.message
        if request.endpoint_type != 1:
            text = "only the brokers can be described: there are no controllers to connect to"
            call.reply(DescribeClusterResponse(error_code=KafkaCode.UNSUPPORTED_ENDPOINT_TYPE, error_message=text))
            return
        brokers = node.brokers(call)
        response = DescribeClusterResponse(
            cluster_id=node.node.catalog.cluster_id,
            controller_id=node.controller(brokers),
            brokers=[DescribeClusterBroker(*broker) for broker in brokers.values()],
        )
        if request.include_cluster_authorized_operations:
            response.cluster_authorized_operations = CLUSTER_OPERATIONS
        call.reply(response)

    def refusal(request: DescribeClusterRequest, version: int, code: ErrorCode, text: str) -> DescribeClusterResponse:
        return DescribeClusterResponse(error_code=code, error_message=text)

    return Translator(DescribeClusterRequest, handle, refusal)
