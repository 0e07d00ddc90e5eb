"""What is over leaves memory at once: the daemon seldom walks all objects to find those that only know one another."""

from __future__ import annotations

import asyncio
import gc
import weakref
from collections.abc import Iterator
from typing import Any

import pytest

from coordinator.embedded import Coordinator
from coordinator.kafka.calls import KafkaCall
from coordinator.log.partition import PartitionLog
from coordinator.metadata.catalog import TopicError
from coordinator.server.connection import Connection
from protocol.codec import encode_message
from protocol.errors import ErrorCode
from protocol.framing import encode_request
from protocol.kafka.messages.delete_topics_request import DeleteTopicsRequest, DeleteTopicState
from protocol.kafka.messages.fetch_request import FetchPartition, FetchRequest, FetchTopic
from protocol.kafka.messages.heartbeat_request import HeartbeatRequest
from protocol.kafka.messages.metadata_request import MetadataRequest, MetadataRequestTopic
from protocol.kafka.messages.produce_request import PartitionProduceData, ProduceRequest, TopicProduceData
from protocol.kafka.schema import Message
from protocol.messages import ApiKey
from protocol.messages.cluster import ApiVersionsRequest
from tests.coordinator.kafka.any_request import BATCH
from tests.coordinator.kafka.wire import connected, request_frame

NATIVE = encode_request(ApiKey.API_VERSIONS, 0, 1, "test", encode_message(ApiVersionsRequest()))
KAFKA = request_frame(HeartbeatRequest("g", 1, "m"), 4, 1)


@pytest.fixture
def _without_collector() -> Iterator[None]:
    gc.collect()
    gc.disable()
    yield
    gc.enable()


def open_connections(coordinator: Coordinator) -> list[weakref.ref[Connection]]:
    daemon = coordinator._daemon
    assert daemon is not None
    assert daemon._listener is not None
    return [weakref.ref(each) for each in daemon._listener._connections]


async def gone(reference: weakref.ref[Any]) -> bool:
    """Whether it goes within some turns of the loop."""
    for _ in range(200):
        if reference() is None:
            return True
        await asyncio.sleep(0.01)
    return False


@pytest.mark.usefixtures("_without_collector")
@pytest.mark.parametrize("closed_by", ["client", "daemon"])
@pytest.mark.parametrize("protocol", ["native", "kafka"])
async def test_a_closed_connection_leaves_memory(protocol: str, closed_by: str) -> None:
    async with Coordinator(kafka_port=-1, log_level="error") as coordinator:
        address = coordinator.address if protocol == "native" else coordinator.kafka_address
        async with connected(address) as wire:
            wire.writer.write(NATIVE if protocol == "native" else KAFKA)
            await wire.frame()
            (connection,) = open_connections(coordinator)
            if closed_by == "daemon":
                wire.writer.write(b"\xff" * 8)
                await wire.reader.read()
        assert await gone(connection)


@pytest.mark.usefixtures("_without_collector")
async def test_a_connection_leaves_memory_whose_request_waits() -> None:
    wanted = FetchTopic("t", partitions=[FetchPartition(0, -1, 0, partition_max_bytes=1000)])
    async with Coordinator(kafka_port=-1, log_level="error") as coordinator:
        async with connected(coordinator.kafka_address) as wire:
            await wire.ask(MetadataRequest([MetadataRequestTopic(name="t")]), 9)
            (connection,) = open_connections(coordinator)
            waiting = FetchRequest(max_wait_ms=20_000, min_bytes=1, max_bytes=1000, topics=[wanted])
            wire.writer.write(request_frame(waiting, 11, 9))
            await asyncio.sleep(0.1)
        assert await gone(connection)


@pytest.mark.usefixtures("_without_collector")
async def test_an_answered_request_of_a_kafka_client_leaves_memory() -> None:
    partition = TopicProduceData("t", partition_data=[PartitionProduceData(0, BATCH)])
    wanted = FetchTopic("t", partitions=[FetchPartition(0, -1, 0, partition_max_bytes=1000)])
    requests: list[tuple[Message, int]] = [
        (MetadataRequest([MetadataRequestTopic(name="t")]), 9),
        (ProduceRequest(None, -1, 1000, [partition]), 9),
        (FetchRequest(max_wait_ms=0, min_bytes=1, max_bytes=1000, topics=[wanted]), 11),
        (HeartbeatRequest("g", 1, "m"), 4),
    ]
    async with (
        Coordinator(kafka_port=-1, log_level="error") as coordinator,
        connected(coordinator.kafka_address) as wire,
    ):
        for request, version in requests:
            await wire.ask(request, version)
        await asyncio.sleep(0.05)
        left = [each for each in gc.get_objects() if isinstance(each, KafkaCall)]
        assert [type(each.message).__name__ for each in left] == []


@pytest.mark.usefixtures("_without_collector")
async def test_the_log_of_a_deleted_topic_leaves_memory() -> None:
    async with (
        Coordinator(kafka_port=-1, log_level="error") as coordinator,
        connected(coordinator.kafka_address) as wire,
    ):
        await wire.ask(MetadataRequest([MetadataRequestTopic(name="t")]), 9)
        produced = [TopicProduceData("t", partition_data=[PartitionProduceData(0, BATCH)])]
        await wire.ask(ProduceRequest(None, -1, 1000, produced), 9)
        found = [each for each in gc.get_objects() if isinstance(each, PartitionLog) and each.directory == "t-0"]
        log = weakref.ref(found.pop())
        await wire.ask(DeleteTopicsRequest(topics=[DeleteTopicState("t")], timeout_ms=10_000), 6)
        assert await gone(log)


@pytest.mark.usefixtures("_without_collector")
async def test_a_change_of_topics_that_is_refused_leaves_memory() -> None:
    async with (
        Coordinator(kafka_port=-1, log_level="error") as coordinator,
        connected(coordinator.kafka_address) as wire,
    ):
        told = await wire.ask(DeleteTopicsRequest([DeleteTopicState("none")], [], 10_000), 6)
        assert told.responses[0].error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        await asyncio.sleep(0.05)
        assert [each for each in gc.get_objects() if isinstance(each, TopicError)] == []
