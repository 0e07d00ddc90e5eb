"""Logs over the Kafka port: looking up offsets by time and epoch, deleting records, sizes; offsets of groups that go."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import pytest

from coordinator.embedded import Coordinator
from coordinator.server.handlers import describe_log_dirs
from protocol.errors import ErrorCode
from protocol.kafka.messages.create_topics_request import CreatableTopic, CreateTopicsRequest
from protocol.kafka.messages.delete_records_request import (
    DeleteRecordsPartition,
    DeleteRecordsRequest,
    DeleteRecordsTopic,
)
from protocol.kafka.messages.delete_topics_request import DeleteTopicsRequest
from protocol.kafka.messages.describe_log_dirs_request import DescribableLogDirTopic, DescribeLogDirsRequest
from protocol.kafka.messages.list_offsets_request import ListOffsetsPartition, ListOffsetsRequest, ListOffsetsTopic
from protocol.kafka.messages.metadata_request import MetadataRequest, MetadataRequestTopic
from protocol.kafka.messages.offset_commit_request import (
    OffsetCommitRequest,
    OffsetCommitRequestPartition,
    OffsetCommitRequestTopic,
)
from protocol.kafka.messages.offset_delete_request import (
    OffsetDeleteRequest,
    OffsetDeleteRequestPartition,
    OffsetDeleteRequestTopic,
)
from protocol.kafka.messages.offset_for_leader_epoch_request import (
    OffsetForLeaderEpochRequest,
    OffsetForLeaderPartition,
    OffsetForLeaderTopic,
)
from protocol.kafka.messages.produce_request import PartitionProduceData, ProduceRequest, TopicProduceData
from tests.coordinator.kafka.wire import KafkaWire, connected
from tests.protocol.kafka.written import Record, written

TIMES = (50, 90, 70)


@pytest.fixture
async def wire() -> AsyncIterator[KafkaWire]:
    """Of a daemon with three records in ``t``, a batch each."""
    async with (
        Coordinator(kafka_port=-1, flush="os", node_id=1) as coordinator,
        connected(coordinator.kafka_address) as connection,
    ):
        await connection.ask(MetadataRequest([MetadataRequestTopic(name="t")]), 9)
        for time in TIMES:
            batch = PartitionProduceData(0, written([Record(None, b"v" * 100, time)]))
            told = await connection.ask(ProduceRequest(None, -1, 9_000, [TopicProduceData("t", b"", [batch])]), 9)
            assert told.responses[0].partition_responses[0].error_code == ErrorCode.NONE
        yield connection


async def listed(wire: KafkaWire, timestamp: int, version: int = 9, partition: int = 0) -> tuple[int, int, int]:
    topics = [ListOffsetsTopic("t", [ListOffsetsPartition(partition, -1, timestamp)])]
    asked = ListOffsetsRequest(-1, 0, topics, timeout_ms=500 if version >= 10 else 0)
    found = (await wire.ask(asked, version)).topics[0].partitions[0]
    return found.error_code, found.offset, found.timestamp


async def test_offsets_are_found_by_time_and_by_place(wire: KafkaWire) -> None:
    for version in range(1, 11):
        assert await listed(wire, -1, version) == (0, 3, -1)
        assert await listed(wire, -2, version) == (0, 0, -1)
        assert await listed(wire, 60, version) == (0, 1, 90)
        assert await listed(wire, 91, version) == (0, -1, -1)
        assert await listed(wire, -1, version, partition=7) == (ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, -1, -1)
    assert await listed(wire, -3, 7) == (0, 1, 90)
    assert await listed(wire, -4, 8) == (0, 0, -1)
    assert await listed(wire, -5, 9) == (0, -1, -1)
    assert await listed(wire, -5, 10) == (0, -1, -1)
    assert (await listed(wire, -6, 10))[0] == ErrorCode.INVALID_TIMESTAMP


async def test_of_a_log_without_records_no_time_is_the_largest(wire: KafkaWire) -> None:
    await wire.ask(MetadataRequest([MetadataRequestTopic(name="empty")]), 9)
    asked = ListOffsetsRequest(-1, 0, [ListOffsetsTopic("empty", [ListOffsetsPartition(0, -1, -3)])])
    found = (await wire.ask(asked, 7)).topics[0].partitions[0]
    assert (found.error_code, found.offset) == (ErrorCode.NONE, -1)


async def test_leader_epochs_are_told_with_their_ends(wire: KafkaWire) -> None:
    partitions = [OffsetForLeaderPartition(0, -1, epoch) for epoch in (0, 1, -1)]
    partitions += [OffsetForLeaderPartition(0, 5, 0), OffsetForLeaderPartition(9, -1, 0)]
    for version in range(2, 5):
        told = await wire.ask(OffsetForLeaderEpochRequest(-1, [OffsetForLeaderTopic("t", partitions)]), version)
        assert [(each.error_code, each.leader_epoch, each.end_offset) for each in told.topics[0].partitions] == [
            (ErrorCode.NONE, 0, 3),
            (ErrorCode.NONE, -1, -1),
            (ErrorCode.NONE, -1, -1),
            (ErrorCode.UNKNOWN_LEADER_EPOCH, -1, -1),
            (ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, -1, -1),
        ]


async def test_records_are_deleted_up_to_an_offset(wire: KafkaWire) -> None:
    for version, offset, left in ((0, 1, 1), (1, 2, 2), (2, -1, 3)):
        asked = DeleteRecordsRequest([DeleteRecordsTopic("t", [DeleteRecordsPartition(0, offset)])], 5_000)
        found = (await wire.ask(asked, version)).topics[0].partitions[0]
        assert (found.error_code, found.low_watermark) == (ErrorCode.NONE, left)
        assert (await listed(wire, -2))[1] == left
    beyond = DeleteRecordsRequest([DeleteRecordsTopic("t", [DeleteRecordsPartition(0, 99)])], 5_000)
    (found,) = (await wire.ask(beyond, 2)).topics[0].partitions
    assert found.error_code == ErrorCode.OFFSET_OUT_OF_RANGE


async def test_records_are_deleted_for_who_gives_no_time(wire: KafkaWire) -> None:
    """As in Kafka the time is for replicas elsewhere, not for the disk here: librdkafka's operation_timeout may be 0."""
    await wire.ask(CreateTopicsRequest([CreatableTopic("u", 3, 1)], 10_000), 7)
    all_records = DeleteRecordsTopic("u", [DeleteRecordsPartition(index, -1) for index in (0, 1, 2)])
    for version, offset in ((0, 1), (1, 2), (2, 3)):
        some = DeleteRecordsTopic("t", [DeleteRecordsPartition(0, offset), DeleteRecordsPartition(9, 0)])
        for timeout_ms in (0, -1):
            asked = DeleteRecordsRequest([some, all_records], timeout_ms)
            told = await wire.ask(asked, version)
            assert [(each.error_code, each.low_watermark) for topic in told.topics for each in topic.partitions] == [
                (ErrorCode.NONE, offset),
                (ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, -1),
                *[(ErrorCode.NONE, 0)] * 3,
            ]


async def test_logs_are_described_while_their_topics_are_deleted(monkeypatch: pytest.MonkeyPatch) -> None:
    """It takes several steps for many partitions, between which a topic may go: here each takes one."""
    monkeypatch.setattr(describe_log_dirs, "STEP", 1)
    names = [f"many-{number}" for number in range(3)]
    async with (
        Coordinator(kafka_port=-1, flush="os", node_id=1) as coordinator,
        connected(coordinator.kafka_address) as wire,
        connected(coordinator.kafka_address) as other,
    ):
        await wire.ask(CreateTopicsRequest([CreatableTopic(name, 300, 1) for name in names], 20_000), 7)
        for name in names:
            deleting = asyncio.create_task(other.ask(DeleteTopicsRequest(topic_names=[name], timeout_ms=20_000), 4))
            while not deleting.done():
                described = [DescribableLogDirTopic(name, list(range(300)))]
                (directory,) = (await wire.ask(DescribeLogDirsRequest(described), 4)).results
                assert directory.error_code == ErrorCode.NONE
            assert (await deleting).responses[0].error_code == ErrorCode.NONE


async def test_logs_are_described_with_their_sizes(wire: KafkaWire) -> None:
    for version in range(1, 5):
        for topics in (None, [DescribableLogDirTopic("t", [0, 3]), DescribableLogDirTopic("missing", [0])]):
            (directory,) = (await wire.ask(DescribeLogDirsRequest(topics), version)).results
            sizes = {topic.name: [each.partition_size for each in topic.partitions] for topic in directory.topics}
            assert len(sizes["t"]) == 1
            assert sizes["t"][0] > 3 * 100
            assert "missing" not in sizes


async def test_committed_offsets_are_deleted(wire: KafkaWire) -> None:
    topic = OffsetCommitRequestTopic("t", partitions=[OffsetCommitRequestPartition(0, 3)])
    await wire.ask(OffsetCommitRequest("g", topics=[topic]), 9)
    asked = OffsetDeleteRequest("g", [OffsetDeleteRequestTopic("t", [OffsetDeleteRequestPartition(0)])])
    told = await wire.ask(asked, 0)
    assert (told.error_code, told.topics[0].partitions[0].error_code) == (ErrorCode.NONE, ErrorCode.NONE)
    told = await wire.ask(OffsetDeleteRequest("none", asked.topics), 0)
    assert told.error_code == ErrorCode.GROUP_ID_NOT_FOUND
