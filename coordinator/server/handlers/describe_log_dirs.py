"""DescribeLogDirs (35): what the logs of topics hold on this node, whoever leads them."""

from __future__ import annotations

from collections.abc import Iterator
from typing import cast

from coordinator.metadata.catalog import Topic, TopicError
from coordinator.server.call import Call, Handler
from coordinator.server.dispatch import STEP, ErrorTexts
from coordinator.server.node import Node
from protocol.errors import ErrorCode
from protocol.messages.configs import (
    DescribedLog,
    DescribedTopicLogs,
    DescribeLogDirsRequest,
    DescribeLogDirsResponse,
)


def handler(node: Node) -> Handler:
    """Tells offsets, size and state of each partition's log."""
    return lambda call: _describe(node, call)


def _describe(node: Node, call: Call) -> Iterator[None]:
    """Answers with what the logs of topics hold."""
    request = cast("DescribeLogDirsRequest", call.request)
    results, texts = list[DescribedTopicLogs](), ErrorTexts()
    done = 0
    for name in dict.fromkeys(request.topic_names):
        logs = list[DescribedLog]()
        code, text = ErrorCode.NONE, ""
        try:
            topic = node.catalog.topic(name)
        except TopicError as error:
            code, text, partitions = error.code, texts(str(error)), 0
        else:
            partitions = len(topic.partitions)
        for index in range(max(1, partitions)):
            done += 1
            if done % STEP == 0:
                yield
            if partitions and topic.partitions[index].has(node.catalog.node_id):
                logs.append(_described_log(node, topic, index))
        results.append(DescribedTopicLogs(name, code, text, tuple(logs)))
    call.answer(DescribeLogDirsResponse(tuple(results)))


def _described_log(node: Node, topic: Topic, index: int) -> DescribedLog:
    if topic.internal and not node.logs.is_created(
        topic.name, index
    ):  # any other may have been deleted since the last step
        return DescribedLog(index, ErrorCode.NONE, "", 0, 0, 0, 0, 0)
    opened = node.logs.logs.get((topic.name, index))
    if opened is None:
        damage = node.logs.damage(topic.name, index)
        if damage is not None:
            return DescribedLog(index, ErrorCode.KAFKA_STORAGE_ERROR, damage)
        text = f"{topic.name}-{index} is not open at the moment; try again"
        return DescribedLog(index, ErrorCode.LEADER_NOT_AVAILABLE, text)
    return DescribedLog(
        index,
        ErrorCode.NONE,
        "",
        opened.start_offset,
        opened.high_watermark,
        opened.size,
        opened.segment_count,
        round(100 * opened.dirty_ratio),
        opened.fault,
        opened.end_offset,
    )
