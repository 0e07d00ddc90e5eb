"""Topics of Kafka's administrators: CreateTopics, DeleteTopics, CreatePartitions."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Final

from coordinator.kafka.calls import KafkaCall, Translator
from coordinator.kafka.codes import KafkaCode
from coordinator.kafka.configs import config_source, stored_name
from coordinator.kafka.kafka_node import NO_TOPIC_ID, KafkaNode, packed_topic_id
from coordinator.server.call import StepsLeft
from protocol.errors import ErrorCode
from protocol.kafka.messages.create_partitions_request import CreatePartitionsRequest, CreatePartitionsTopic
from protocol.kafka.messages.create_partitions_response import CreatePartitionsResponse, CreatePartitionsTopicResult
from protocol.kafka.messages.create_topics_request import CreatableTopic, CreateTopicsRequest
from protocol.kafka.messages.create_topics_response import (
    CreatableTopicConfigs,
    CreatableTopicResult,
    CreateTopicsResponse,
)
from protocol.kafka.messages.delete_topics_request import DeleteTopicsRequest
from protocol.kafka.messages.delete_topics_response import DeletableTopicResult, DeleteTopicsResponse
from protocol.messages import configs as native_configs
from protocol.messages import topics as native

_PLACED: Final = "partitions are placed by the cluster: leave the assignment of replicas out, then move them if need be"
_BY_ID_SINCE: Final = 6
"""The version of DeleteTopics that names topics by name or id."""
_DETAILS_SINCE: Final = 5
"""The version of CreateTopics whose answer has partitions, replicas and settings (KIP-525)."""


class _Creation:
    """CreateTopics."""

    def __init__(self, node: KafkaNode) -> None:
        self._node = node
        self._create = node.handlers[native.CreateTopicsRequest]
        self._describe = node.handlers[native_configs.DescribeConfigsRequest]

    def handle(self, call: KafkaCall) -> StepsLeft:
        """Makes the topics whose replicas the client does not place and whose settings have values, then answers with what
        they have."""
        request: CreateTopicsRequest = call.message
        asked = native.CreateTopicsRequest(
            tuple(_wanted(self._node, topic) for topic in request.topics if self._refusal(topic) is None),
            request.timeout_ms,
            request.validate_only,
        )
        return call.ask(self._create, asked, lambda response: self._made(call, response))

    def _refusal(self, topic: CreatableTopic) -> tuple[ErrorCode, str] | None:
        for each in topic.configs:
            if each.value is None:
                return ErrorCode.INVALID_CONFIG, f"{each.name[:60]} has no value: leave it out to have the daemon's"
        return None if self._is_placed_here(topic) else (ErrorCode.INVALID_REPLICA_ASSIGNMENT, _PLACED)

    def _is_placed_here(self, topic: CreatableTopic) -> bool:
        """Whether each partition goes where it would go anyway: nothing is said, or the one node that there is."""
        node = self._node.node
        here = [node.settings.node_id]
        return not topic.assignments or (
            not node.catalog.cluster
            and sorted(each.partition_index for each in topic.assignments) == list(range(len(topic.assignments)))
            and all(each.broker_ids == here for each in topic.assignments)
        )

    def _made(self, call: KafkaCall, response: native.CreateTopicsResponse) -> None:
        """The settings of what was made are asked for where the answer has a place for them."""
        names = tuple(topic.name for topic in response.topics if not topic.error_code)
        if call.version < _DETAILS_SINCE or call.message.validate_only or not names:
            self._answer(call, response, native_configs.DescribeConfigsResponse(()))
            return
        steps = call.ask(
            self._describe,
            native_configs.DescribeConfigsRequest(names),
            lambda described: self._answer(call, response, described),
        )
        for _ in steps or ():
            pass  # as many topics as this request has just made

    def _answer(
        self,
        call: KafkaCall,
        response: native.CreateTopicsResponse,
        described: native_configs.DescribeConfigsResponse,
    ) -> None:
        made = {topic.name: topic for topic in response.topics}
        configs = {topic.name: topic.configs for topic in described.results}
        request: CreateTopicsRequest = call.message
        results = []
        for topic in {each.name: each for each in request.topics}.values():
            if topic.name in made:
                results.append(self._result(made[topic.name], configs.get(topic.name, ())))
            elif (refusal := self._refusal(topic)) is not None:  # else it would have been asked for
                results.append(CreatableTopicResult(topic.name, error_code=refusal[0], error_message=refusal[1]))
        call.reply(CreateTopicsResponse(topics=results))

    def _result(
        self, topic: native.CreatedTopic, configs: Sequence[native_configs.DescribedConfig]
    ) -> CreatableTopicResult:
        known = self._node.node.catalog.topics.get(topic.name)
        replicas = len(known.partitions[0].replicas) if known is not None and not topic.error_code else -1
        return CreatableTopicResult(
            topic.name,
            packed_topic_id(topic.topic_id),
            topic.error_code,
            topic.error_message or None,
            0,
            topic.num_partitions,
            replicas,
            [CreatableTopicConfigs(each.name, each.value, False, config_source(each)) for each in configs],
        )


def create_topics(node: KafkaNode) -> Translator:
    """See ``_Creation``."""

    def refusal(request: CreateTopicsRequest, version: int, code: ErrorCode, text: str) -> CreateTopicsResponse:
        return CreateTopicsResponse(
            topics=[CreatableTopicResult(topic.name, error_code=code, error_message=text) for topic in request.topics]
        )

    return Translator(CreateTopicsRequest, _Creation(node).handle, refusal)


def _wanted(node: KafkaNode, topic: CreatableTopic) -> native.CreatableTopic:
    configs = tuple(
        native.TopicConfig(stored_name(node, topic.name, each.name), each.value or "") for each in topic.configs
    )
    partitions = len(topic.assignments) or topic.num_partitions
    return native.CreatableTopic(topic.name, partitions, topic.replication_factor, configs)


class _Deletion:
    """DeleteTopics."""

    def __init__(self, node: KafkaNode) -> None:
        self._node = node
        self._delete = node.handlers[native.DeleteTopicsRequest]

    def handle(self, call: KafkaCall) -> StepsLeft:
        """Deletes topics by name or, since version 6, by id."""
        request: DeleteTopicsRequest = call.message
        wanted = self._named(request, call.version)
        names = tuple(dict.fromkeys(name for name, _ in wanted if name is not None))
        asked = native.DeleteTopicsRequest(names, request.timeout_ms)

        def told(response: native.DeleteTopicsResponse) -> None:
            done = {topic.name: topic for topic in response.responses}
            results = []
            for name, topic_id in wanted:
                if name is None:
                    text = f"there is no topic with the id {topic_id.hex()}"
                    results.append(DeletableTopicResult(None, topic_id, KafkaCode.UNKNOWN_TOPIC_ID, text))
                else:
                    result = done[name]
                    results.append(
                        DeletableTopicResult(name, topic_id, result.error_code, result.error_message or None)
                    )
            call.reply(DeleteTopicsResponse(responses=results))

        return call.ask(self._delete, asked, told)

    def _named(self, request: DeleteTopicsRequest, version: int) -> list[tuple[str | None, bytes]]:
        """Names and ids; no name for an id that no topic has. What is given twice is answered once."""
        topics = self._node.node.catalog.topics
        if version < _BY_ID_SINCE:
            return [(name, NO_TOPIC_ID) for name in dict.fromkeys(request.topic_names)]
        by_id: dict[bytes, str] = {}
        if any(each.name is None for each in request.topics):
            by_id = {packed_topic_id(topic.topic_id): name for name, topic in topics.items()}
        found: dict[tuple[str | None, bytes], None] = {}
        for each in request.topics:
            if each.name is None:
                found[by_id.get(each.topic_id), each.topic_id] = None
            else:
                known = topics.get(each.name)
                found[each.name, NO_TOPIC_ID if known is None else packed_topic_id(known.topic_id)] = None
        return list(found)


def delete_topics(node: KafkaNode) -> Translator:
    """See ``_Deletion``."""

    def refusal(request: DeleteTopicsRequest, version: int, code: ErrorCode, text: str) -> DeleteTopicsResponse:
        if version < _BY_ID_SINCE:
            results = [DeletableTopicResult(name, NO_TOPIC_ID, code, text) for name in request.topic_names]
        else:
            results = [DeletableTopicResult(each.name, each.topic_id, code, text) for each in request.topics]
        return DeleteTopicsResponse(responses=results)

    return Translator(DeleteTopicsRequest, _Deletion(node).handle, refusal)


def create_partitions(node: KafkaNode) -> Translator:
    """Adds partitions to topics; where the client places them elsewhere than they would be, it is refused."""
    handler = node.handlers[native.CreatePartitionsRequest]
    inner = node.node

    def is_placed_here(topic: CreatePartitionsTopic) -> bool:
        known = inner.catalog.topics.get(topic.name)
        if not topic.assignments or known is None:
            return True
        here = [inner.settings.node_id]
        return (
            not inner.catalog.cluster
            and len(topic.assignments) == topic.count - len(known.partitions)
            and all(each.broker_ids == here for each in topic.assignments)
        )

    def handle(call: KafkaCall) -> StepsLeft:
        request: CreatePartitionsRequest = call.message
        counts = Counter(topic.name for topic in request.topics)
        asked = native.CreatePartitionsRequest(
            tuple(native.TopicPartitionCount(each.name, each.count) for each in request.topics if is_placed_here(each)),
            request.timeout_ms,
            request.validate_only,
        )

        def told(response: native.CreatePartitionsResponse) -> None:
            done = {topic.name: topic for topic in response.results}
            results = []
            for name in counts:
                if name in done:
                    result = done[name]
                    results.append(CreatePartitionsTopicResult(name, result.error_code, result.error_message or None))
                else:
                    code = ErrorCode.INVALID_REPLICA_ASSIGNMENT
                    results.append(CreatePartitionsTopicResult(name, code, _PLACED))
            call.reply(CreatePartitionsResponse(results=results))

        return call.ask(handler, asked, told)

    def refusal(request: CreatePartitionsRequest, version: int, code: ErrorCode, text: str) -> CreatePartitionsResponse:
        return CreatePartitionsResponse(
            results=[CreatePartitionsTopicResult(topic.name, code, text) for topic in request.topics]
        )

    return Translator(CreatePartitionsRequest, handle, refusal)
