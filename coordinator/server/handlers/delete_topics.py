"""DeleteTopics (20): topics go, with their records and the offsets that groups committed for them."""

from __future__ import annotations

from typing import cast

from coordinator.log_output import get_logger
from coordinator.metadata.catalog import TopicError
from coordinator.server.call import Call, Handler
from coordinator.server.handlers.topic_change import answer_each, finish_deletion, turn
from coordinator.server.node import Node
from protocol.errors import ErrorCode
from protocol.messages.topics import DeleteTopicsRequest, DeleteTopicsResponse, TopicResult

log = get_logger()


def handler(node: Node) -> Handler:
    """Deletes topics one after the other, and answers when their names are free again."""
    return lambda call: node.tasks.start_change(call, _delete_all(node, call))


async def _delete_all(node: Node, call: Call) -> None:
    request = cast("DeleteTopicsRequest", call.request)

    async def delete(name: str, deadline: float) -> TopicResult:
        async with turn(node.catalog, name, deadline):
            topic = node.catalog.topic(name)
            if topic.internal:
                raise TopicError(ErrorCode.INVALID_TOPIC_EXCEPTION, f"topic {name!r} is internal and stays")
            if node.cluster_topics is not None:
                await node.cluster_topics.delete(topic)
            else:
                await node.catalog.begin_deletion(topic)
                await finish_deletion(node, topic.topic_id, name, len(topic.partitions))
        log.info("topic_deleted", topic=name)
        return TopicResult(name, ErrorCode.NONE)

    await answer_each(
        node.tasks, call, request.topic_names, request.timeout_ms, delete, TopicResult, DeleteTopicsResponse,
    )  # fmt: skip
