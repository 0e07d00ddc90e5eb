"""DescribeConfigs (32): the settings that hold for topics."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from typing import cast

from coordinator.metadata.catalog import Topic, TopicError
from coordinator.metadata.partitions import MAJORITY
from coordinator.metadata.topic_config import TOPIC_SETTINGS
from coordinator.server.call import Call, Handler
from coordinator.server.dispatch import STEP, ErrorTexts
from coordinator.server.handlers.known_topics import catch_up_soon
from coordinator.server.node import Node
from protocol.errors import ErrorCode
from protocol.messages.configs import (
    DescribeConfigsRequest,
    DescribeConfigsResponse,
    DescribedConfig,
    DescribedTopicConfigs,
)


def handler(node: Node) -> Handler:
    """Tells of each setting its value, and whether it is the daemon's default."""
    return partial(_describe_anew, node) if node.catalog.cluster else partial(_describe, node)


def _describe_anew(node: Node, call: Call) -> None:
    """Of a node of a cluster, where another may have changed them just now."""

    async def answer() -> None:
        await catch_up_soon(node.catalog)
        for _ in _describe(node, call):
            await node.tasks.next_step(call)

    node.tasks.start(call, answer())


def _describe(node: Node, call: Call) -> Iterator[None]:
    """Answers with what holds for topics."""
    request = cast("DescribeConfigsRequest", call.request)
    results, texts = list[DescribedTopicConfigs](), ErrorTexts()
    for name in dict.fromkeys(request.topic_names):  # a name given twice is answered once
        if len(results) % STEP == STEP - 1:
            yield
        try:
            results.append(_described(node, node.catalog.topic(name)))
        except TopicError as error:
            results.append(DescribedTopicConfigs(name, error.code, texts(str(error))))
    call.answer(DescribeConfigsResponse(tuple(results)))


def _described(node: Node, topic: Topic) -> DescribedTopicConfigs:
    config = node.catalog.config(topic)
    values = {name: str(getattr(config, name.replace(".", "_"))) for name in TOPIC_SETTINGS}
    if config.min_insync_replicas == MAJORITY:  # a client is told the number that holds
        replicas = len(topic.partitions[0].replicas)
        values["min.insync.replicas"] = str(node.catalog.min_isr_of(topic, replicas))
    described = tuple(DescribedConfig(name, value, name not in topic.config) for name, value in values.items())
    return DescribedTopicConfigs(topic.name, ErrorCode.NONE, "", described)
