"""CreatePartitions (37): topics get more partitions."""

from __future__ import annotations

from typing import cast

from coordinator.log_output import get_logger
from coordinator.server.call import Call, Handler
from coordinator.server.handlers.topic_change import answer_each, make_partitions, turn
from coordinator.server.node import Node
from protocol.errors import ErrorCode
from protocol.messages.topics import (
    CreatePartitionsRequest,
    CreatePartitionsResponse,
    TopicPartitionCount,
    TopicResult,
)

log = get_logger()


def handler(node: Node) -> Handler:
    """Adds partitions to one topic after the other, and answers when they are there."""
    return lambda call: node.tasks.start_change(call, _grow_all(node, call))


async def _grow_all(node: Node, call: Call) -> None:
    request = cast("CreatePartitionsRequest", call.request)

    async def grow(wanted: TopicPartitionCount, deadline: float) -> TopicResult:
        async with turn(node.catalog, wanted.name, deadline):
            topic = node.catalog.check_growth(wanted.name, wanted.count)
            if not request.validate_only:
                if node.cluster_topics is not None:
                    await node.cluster_topics.grow(topic, node.cluster_topics.draft_growth(topic, wanted.count))
                else:
                    grown = node.catalog.draft_growth(topic, wanted.count)
                    await make_partitions(
                        node.catalog, node.logs, [(grown, range(len(topic.partitions), wanted.count))]
                    )
                log.info("partitions_created", topic=wanted.name, partitions=wanted.count)
        return TopicResult(wanted.name, ErrorCode.NONE)

    await answer_each(
        node.tasks, call, request.topics, request.timeout_ms, grow,
        lambda wanted, code, message: TopicResult(wanted.name, code, message), CreatePartitionsResponse,
    )  # fmt: skip
