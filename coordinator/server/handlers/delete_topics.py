"""DeleteTopics (20): topics go, with their records and the offsets that groups committed for them.

In a cluster some at a time, with one transaction of the metadata. A node that is alone removes the files of one topic after
the other before it answers.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Final, cast

from coordinator.controller.topics import MAX_DELETED, ClusterTopics
from coordinator.log_output import get_logger
from coordinator.metadata.catalog import Catalog, Topic, TopicError
from coordinator.server.call import Call, Handler
from coordinator.server.handlers.topic_change import answer_in_batches, finish_deletion, turn
from coordinator.server.node import Node
from protocol.errors import ErrorCode
from protocol.messages.topics import DeleteTopicsRequest, DeleteTopicsResponse, TopicResult

log = get_logger()

_PARTITIONS_AT_ONCE: Final = 256
"""Partitions of topics that are deleted together: all nodes hear of them in one delta."""


def handler(node: Node) -> Handler:
    """Deletes topics, and answers when their names are free again."""
    return lambda call: node.tasks.start_change(call, _delete_all(node, call))


async def _delete_all(node: Node, call: Call) -> None:
    request = cast("DeleteTopicsRequest", call.request)
    cluster_topics = node.cluster_topics

    async def delete(names: Sequence[str], deadline: float) -> list[TopicResult | Exception]:
        async with turn(node.catalog, names[0], deadline):
            if cluster_topics is not None:
                return await _deleted_together(cluster_topics, node.catalog, names)
            return [await _deleted_here(node, name) for name in names]

    batches = _batches(node.catalog, request.topic_names, 1 if cluster_topics is None else MAX_DELETED)
    await answer_in_batches(
        node.tasks, call, batches, request.timeout_ms, delete, TopicResult, DeleteTopicsResponse,
    )  # fmt: skip


def _batches(catalog: Catalog, names: Sequence[str], most: int) -> Iterator[list[str]]:
    """Cuts names into those of topics that are deleted together; one that comes twice begins another batch."""
    some: list[str] = []
    partitions = 0
    for name in names:
        known = catalog.topics.get(name)
        count = 0 if known is None else len(known.partitions)
        if some and (len(some) == most or name in some or partitions + count > _PARTITIONS_AT_ONCE):
            yield some
            some, partitions = [], 0
        some.append(name)
        partitions += count
    if some:
        yield some


async def _deleted_together(
    topics: ClusterTopics, catalog: Catalog, names: Sequence[str]
) -> list[TopicResult | Exception]:
    found: list[Topic] = []
    refused: dict[str, TopicError] = {}
    for name in names:
        try:
            found.append(_deletable(catalog, name))
        except TopicError as error:
            refused[name] = error
    refused |= await topics.delete(found)
    return [refused[name] if name in refused else _deleted(name) for name in names]


async def _deleted_here(node: Node, name: str) -> TopicResult:
    topic = _deletable(node.catalog, name)
    await node.catalog.begin_deletion(topic)
    await finish_deletion(node, topic.topic_id, name, len(topic.partitions))
    return _deleted(name)


def _deletable(catalog: Catalog, name: str) -> Topic:
    topic = catalog.topic(name)
    if topic.internal:
        raise TopicError(ErrorCode.INVALID_TOPIC_EXCEPTION, f"topic {name!r} is internal and stays")
    return topic


def _deleted(name: str) -> TopicResult:
    log.info("topic_deleted", topic=name)
    return TopicResult(name, ErrorCode.NONE)
