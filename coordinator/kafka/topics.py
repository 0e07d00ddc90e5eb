"""Topics of Kafka's administrators: CreateTopics."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator

from coordinator.kafka.calls import KafkaCall, Translator
from coordinator.kafka.kafka_node import KafkaNode, packed_topic_id
from protocol.errors import ErrorCode
from protocol.kafka.messages.create_topics_request import CreatableTopic, CreateTopicsRequest
from protocol.kafka.messages.create_topics_response import CreatableTopicResult, CreateTopicsResponse
from protocol.messages import topics as native

Steps = Iterator["asyncio.Future[None] | None"] | None


def create_topics(node: KafkaNode) -> Translator:
    """Makes topics."""
    handler = node.handlers[native.CreateTopicsRequest]

    def handle(call: KafkaCall) -> Steps:
        request: CreateTopicsRequest = call.message
        asked = native.CreateTopicsRequest(
            tuple(_wanted(topic) for topic in request.topics), request.timeout_ms, request.validate_only
        )
        return call.ask(handler, asked, lambda response: call.reply(_created(response)))

    def refusal(request: CreateTopicsRequest, version: int, code: ErrorCode, text: str) -> CreateTopicsResponse:
        return CreateTopicsResponse(
            topics=[CreatableTopicResult(topic.name, error_code=code, error_message=text) for topic in request.topics]
        )

    return Translator(CreateTopicsRequest, handle, refusal)


def _wanted(topic: CreatableTopic) -> native.CreatableTopic:
    configs = tuple(native.TopicConfig(each.name, each.value or "") for each in topic.configs)
    return native.CreatableTopic(topic.name, topic.num_partitions, topic.replication_factor, configs)


def _created(response: native.CreateTopicsResponse) -> CreateTopicsResponse:
    return CreateTopicsResponse(
        topics=[
            CreatableTopicResult(
                topic.name,
                packed_topic_id(topic.topic_id),
                topic.error_code,
                topic.error_message or None,
                0,
                topic.num_partitions,
                -1,
                [],
            )
            for topic in response.topics
        ]
    )
