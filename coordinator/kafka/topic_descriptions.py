"""Topics as Kafka's clients see them: who leads each partition, who follows, who is missing; and DescribeTopicPartitions.

DescribeTopicPartitions (KIP-966) pages through topics in the order of their names: an answer that was cut short has a cursor
with the partition that comes next, from which the client goes on. What changes between two pages may be seen in either way.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Collection, Iterator
from typing import Final

from coordinator.kafka.calls import KafkaCall, Translator
from coordinator.kafka.codes import TOPIC_OPERATIONS
from coordinator.kafka.kafka_node import KafkaNode, packed_topic_id
from coordinator.metadata.catalog import Topic, TopicError, check_topic_name
from coordinator.metadata.partitions import NO_LEADER
from coordinator.server.dispatch import STEP
from protocol.errors import ErrorCode
from protocol.kafka.messages.describe_topic_partitions_request import DescribeTopicPartitionsRequest
from protocol.kafka.messages.describe_topic_partitions_response import (
    Cursor,
    DescribeTopicPartitionsResponse,
    DescribeTopicPartitionsResponsePartition,
    DescribeTopicPartitionsResponseTopic,
)
from protocol.kafka.messages.metadata_response import MetadataResponsePartition

MOST_PARTITIONS: Final = 2000
"""Of one answer: Kafka's default of max.request.partition.size.limit."""
PARTITIONS_PER_STEP: Final = 16 * STEP
"""Partitions that are described in one step; a topic counts as ``STEP`` of them."""


def is_topic_name(name: str) -> bool:
    """Whether a topic can be called so."""
    try:
        check_topic_name(name)
    except TopicError:
        return False
    return True


def described_partitions(
    topic: Topic, reached: Collection[int], first: int = 0, end: int | None = None
) -> list[MetadataResponsePartition]:
    """The partitions from ``first`` to before ``end``. A leader that is not among the nodes that clients reach is none."""
    described = []
    for index, state in enumerate(topic.partitions[first:end], first):
        leads = state.leader != NO_LEADER and state.leader in reached
        described.append(
            MetadataResponsePartition(
                ErrorCode.NONE if leads else ErrorCode.LEADER_NOT_AVAILABLE,
                index,
                state.leader if leads else NO_LEADER,
                state.leader_epoch,
                list(state.replicas),
                list(state.isr),
                [replica for replica in state.replicas if replica not in reached],
            )
        )
    return described


class _Description:
    """DescribeTopicPartitions."""

    def __init__(self, node: KafkaNode) -> None:
        self._node = node
        self._catalog = node.node.catalog

    def handle(self, call: KafkaCall) -> Iterator[None] | None:
        """Answers with the partitions from the cursor on, as many as the client asks for, ``MOST_PARTITIONS`` at most."""
        if self._node.closes_stranded(call):
            return None
        request: DescribeTopicPartitionsRequest = call.message
        cursor, named = request.cursor, {topic.name for topic in request.topics}
        if cursor is not None and cursor.partition_index < 0:
            call.refuse(ErrorCode.INVALID_REQUEST, f"the cursor names partition {cursor.partition_index}")
            return None
        if cursor is not None and named and cursor.topic_name not in named:
            text = f"the cursor is at topic {cursor.topic_name[:60]!r}, which is not among those that are asked for"
            call.refuse(ErrorCode.INVALID_REQUEST, text)
            return None
        return self._answer(call, request, named)

    def _answer(self, call: KafkaCall, request: DescribeTopicPartitionsRequest, named: set[str]) -> Iterator[None]:
        reached, known = frozenset(self._node.brokers(call)), self._catalog.topics
        names, cursor = sorted(named or known), request.cursor
        begin, first = 0, 0
        if cursor is not None:
            begin = bisect_left(names, cursor.topic_name)
            if begin < len(names) and names[begin] == cursor.topic_name:
                first = cursor.partition_index
        left = max(1, min(request.response_partition_limit, MOST_PARTITIONS))
        described, next_cursor, done = list[DescribeTopicPartitionsResponseTopic](), None, 0
        for name in names[begin:]:
            if not left:
                next_cursor = Cursor(name, 0)
                break
            topic = known.get(name)
            if topic is None:
                code = (
                    ErrorCode.UNKNOWN_TOPIC_OR_PARTITION if is_topic_name(name) else ErrorCode.INVALID_TOPIC_EXCEPTION
                )
                described.append(
                    DescribeTopicPartitionsResponseTopic(code, name, topic_authorized_operations=TOPIC_OPERATIONS)
                )
            else:
                partitions = described_partitions(topic, reached, first, min(first + left, len(topic.partitions)))
                described.append(_described(topic, partitions))
                left -= len(partitions)
                if first + len(partitions) < len(topic.partitions):
                    next_cursor = Cursor(name, first + len(partitions))
                    break
                done += len(partitions)
            first, done = 0, done + STEP
            if done >= PARTITIONS_PER_STEP:
                done = 0
                yield
        call.reply(DescribeTopicPartitionsResponse(topics=described, next_cursor=next_cursor))


def _described(topic: Topic, partitions: list[MetadataResponsePartition]) -> DescribeTopicPartitionsResponseTopic:
    told = [
        DescribeTopicPartitionsResponsePartition(
            each.error_code,
            each.partition_index,
            each.leader_id,
            each.leader_epoch,
            each.replica_nodes,
            each.isr_nodes,
            [],  # only replicas in sync are elected
            [],
            each.offline_replicas,
        )
        for each in partitions
    ]
    topic_id = packed_topic_id(topic.topic_id)
    return DescribeTopicPartitionsResponseTopic(
        ErrorCode.NONE, topic.name, topic_id, topic.internal, told, TOPIC_OPERATIONS
    )


def describe_topic_partitions(node: KafkaNode) -> Translator:
    """See ``_Description``."""

    def refusal(
        request: DescribeTopicPartitionsRequest, version: int, code: ErrorCode, text: str
    ) -> DescribeTopicPartitionsResponse:
        names = dict.fromkeys(topic.name for topic in request.topics)
        return DescribeTopicPartitionsResponse(
            topics=[DescribeTopicPartitionsResponseTopic(code, name) for name in names]
        )

    return Translator(DescribeTopicPartitionsRequest, _Description(node).handle, refusal)
