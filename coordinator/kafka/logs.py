"""What Kafka's clients ask of the logs of partitions: OffsetForLeaderEpoch, DeleteRecords, DescribeLogDirs."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from coordinator.kafka.calls import KafkaCall, Translator
from coordinator.kafka.kafka_node import KafkaNode
from coordinator.metadata.catalog import TopicError
from coordinator.server.call import StepsLeft
from coordinator.server.dispatch import STEP
from coordinator.server.handlers.led_partitions import LedPartitions
from protocol.errors import ErrorCode
from protocol.kafka.messages.delete_records_request import DeleteRecordsRequest
from protocol.kafka.messages.delete_records_response import (
    DeleteRecordsPartitionResult,
    DeleteRecordsResponse,
    DeleteRecordsTopicResult,
)
from protocol.kafka.messages.describe_log_dirs_request import DescribeLogDirsRequest
from protocol.kafka.messages.describe_log_dirs_response import (
    DescribeLogDirsPartition,
    DescribeLogDirsResponse,
    DescribeLogDirsResult,
    DescribeLogDirsTopic,
)
from protocol.kafka.messages.offset_for_leader_epoch_request import (
    OffsetForLeaderEpochRequest,
    OffsetForLeaderPartition,
)
from protocol.kafka.messages.offset_for_leader_epoch_response import (
    EpochEndOffset,
    OffsetForLeaderEpochResponse,
    OffsetForLeaderTopicResult,
)
from protocol.messages import configs as native_configs
from protocol.messages import records as native

_UNDEFINED: Final = -1


def offset_for_leader_epoch(node: KafkaNode) -> Translator:
    """Where leader epochs end, by which a client tells whether what it has read is part of the log still (KIP-320)."""
    inner = node.node
    led = LedPartitions(inner.catalog, inner.logs, inner.membership)

    def handle(call: KafkaCall) -> Iterator[None]:
        request: OffsetForLeaderEpochRequest = call.message
        topics, done = [], 0
        for topic in request.topics:
            ends = []
            for asked in topic.partitions:
                done += 1
                if done % STEP == 0:
                    yield
                ends.append(_end_of(led, topic.topic, asked))
            topics.append(OffsetForLeaderTopicResult(topic.topic, ends))
        call.reply(OffsetForLeaderEpochResponse(topics=topics))

    def refusal(
        request: OffsetForLeaderEpochRequest, version: int, code: ErrorCode, text: str
    ) -> OffsetForLeaderEpochResponse:
        return OffsetForLeaderEpochResponse(
            topics=[
                OffsetForLeaderTopicResult(
                    topic.topic, [EpochEndOffset(code, asked.partition) for asked in topic.partitions]
                )
                for topic in request.topics
            ]
        )

    return Translator(OffsetForLeaderEpochRequest, handle, refusal)


def _end_of(led: LedPartitions, name: str, asked: OffsetForLeaderPartition) -> EpochEndOffset:
    """The largest epoch up to the one asked for, and where it ends; undefined for one that the leader has not seen."""
    try:
        opened, _ = led.find(name, asked.partition, asked.current_leader_epoch)
    except TopicError as error:
        return EpochEndOffset(error.code, asked.partition)
    if not 0 <= asked.leader_epoch <= opened.epochs.latest:
        return EpochEndOffset(ErrorCode.NONE, asked.partition, _UNDEFINED, _UNDEFINED)
    found = opened.epochs.end_of(asked.leader_epoch, opened.end_offset)
    return EpochEndOffset(ErrorCode.NONE, asked.partition, found.epoch, found.end)


def delete_records(node: KafkaNode) -> Translator:
    """The oldest records of partitions go (KIP-107)."""
    handler = node.handlers[native.DeleteRecordsRequest]

    def handle(call: KafkaCall) -> StepsLeft:
        request: DeleteRecordsRequest = call.message
        asked = native.DeleteRecordsRequest(
            tuple(
                native.DeleteRecordsTopic(
                    topic.name,
                    tuple(
                        native.DeleteRecordsPartition(each.partition_index, each.offset) for each in topic.partitions
                    ),
                )
                for topic in request.topics
            ),
            request.timeout_ms,
        )
        return call.ask(handler, asked, lambda response: call.reply(_deleted(response)))

    def refusal(request: DeleteRecordsRequest, version: int, code: ErrorCode, text: str) -> DeleteRecordsResponse:
        return DeleteRecordsResponse(
            topics=[
                DeleteRecordsTopicResult(
                    topic.name,
                    [DeleteRecordsPartitionResult(each.partition_index, -1, code) for each in topic.partitions],
                )
                for topic in request.topics
            ]
        )

    return Translator(DeleteRecordsRequest, handle, refusal)


def _deleted(response: native.DeleteRecordsResponse) -> DeleteRecordsResponse:
    return DeleteRecordsResponse(
        topics=[
            DeleteRecordsTopicResult(
                topic.name,
                [
                    DeleteRecordsPartitionResult(each.partition_index, each.low_watermark, each.error_code)
                    for each in topic.partitions
                ],
            )
            for topic in response.topics
        ]
    )


def describe_log_dirs(node: KafkaNode) -> Translator:
    """How large the logs of this node are, all of which lie in one directory (KIP-113)."""
    handler, catalog, data_dir = (
        node.handlers[native_configs.DescribeLogDirsRequest],
        node.node.catalog,
        node.node.settings.data_dir,
    )

    def handle(call: KafkaCall) -> StepsLeft:
        request: DescribeLogDirsRequest = call.message
        wanted = None
        if request.topics is not None:
            wanted = {topic.topic: frozenset(topic.partitions) for topic in request.topics}
        names = tuple(name for name in (sorted(catalog.topics) if wanted is None else wanted) if name in catalog.topics)

        def told(response: native_configs.DescribeLogDirsResponse) -> None:
            topics = [
                DescribeLogDirsTopic(
                    topic.name,
                    [
                        _described(each)
                        for each in topic.partitions
                        if not each.error_code and (wanted is None or each.partition_index in wanted[topic.name])
                    ],
                )
                for topic in response.results
            ]
            directory = DescribeLogDirsResult(0, data_dir, [topic for topic in topics if topic.partitions])
            call.reply(DescribeLogDirsResponse(results=[directory]))

        return call.ask(handler, native_configs.DescribeLogDirsRequest(names), told)

    def refusal(request: DescribeLogDirsRequest, version: int, code: ErrorCode, text: str) -> DescribeLogDirsResponse:
        return DescribeLogDirsResponse(error_code=code, results=[DescribeLogDirsResult(code, data_dir)])

    return Translator(DescribeLogDirsRequest, handle, refusal)


def _described(log: native_configs.DescribedLog) -> DescribeLogDirsPartition:
    lag = max(0, log.high_watermark - log.log_end_offset)
    return DescribeLogDirsPartition(log.partition_index, log.size, lag)
