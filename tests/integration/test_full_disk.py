"""A disk that takes no more: whoever writes is told, nothing acknowledged is lost, everybody else goes on.

The kernel is made to refuse growth by a limit on the daemon's file size (``RLIMIT_FSIZE``), which fails in the same place
and in the same way as a full disk: a short or refused write in the middle of a batch.
"""

from __future__ import annotations

import asyncio
import resource
from pathlib import Path

import pytest
import structlog

from client.admin import Admin
from client.errors import RequestTimedOutError
from client.producer.producer import Producer
from client.transport.cluster import Cluster
from client.transport.deadline import Deadline
from protocol.errors import ErrorCode
from protocol.messages.offsets import (
    OffsetCommitPartition,
    OffsetCommitRequest,
    OffsetCommitResponse,
    OffsetCommitTopic,
    OffsetFetchRequest,
    OffsetFetchResponse,
)
from protocol.messages.records import (
    PartitionProduceData,
    PartitionProduceResponse,
    ProduceRequest,
    ProduceResponse,
    TopicProduceData,
)
from protocol.record_batch import encode_batch
from tests.daemon_process import DaemonProcess
from tests.integration.test_crash import connected, create, records_of

LIMIT = 64 * 1024 + 1000  # after the batches of the first test, a small one still fits


def limit_files(daemon: DaemonProcess, size: int) -> None:
    _, hard = resource.prlimit(daemon.pid, resource.RLIMIT_FSIZE)
    resource.prlimit(daemon.pid, resource.RLIMIT_FSIZE, (size, hard))


async def append(cluster: Cluster, partition: int, value: bytes) -> PartitionProduceResponse:
    data = (TopicProduceData("orders", (PartitionProduceData(partition, encode_batch([value], timestamps_ms=[1])),)),)
    response = await cluster.call(ProduceRequest(None, -1, 5000, data), ProduceResponse)
    return response.responses[0].partition_responses[0]


async def commit(cluster: Cluster, offset: int, metadata: str, timeout_ms: int) -> int:
    topics = (OffsetCommitTopic("orders", (OffsetCommitPartition(0, offset, -1, metadata),)),)
    response = await cluster.call_coordinator(
        "g", OffsetCommitRequest("g", -1, "", None, topics), OffsetCommitResponse, deadline=Deadline(timeout_ms)
    )
    return response.topics[0].partitions[0].error_code


async def test_producers_are_told_and_nothing_acknowledged_is_lost(tmp_path: Path) -> None:
    with DaemonProcess(tmp_path / "data") as daemon:
        cluster = await connected(daemon)
        await create(cluster, "orders", 2)
        limit_files(daemon, LIMIT)
        acknowledged: list[bytes] = []
        while True:
            value = str(len(acknowledged)).encode() * 1000
            result = await append(cluster, 0, value)
            if result.error_code != ErrorCode.NONE:
                break
            acknowledged.append(value)
        assert result.error_code == ErrorCode.KAFKA_STORAGE_ERROR
        assert "orders-0" in result.error_message
        assert len(acknowledged) > 10
        assert (await append(cluster, 1, b"elsewhere there is room")).error_code == ErrorCode.NONE
        assert (await append(cluster, 0, b"fits")).error_code == ErrorCode.NONE, "what still fits is taken"
        acknowledged.append(b"fits")
        assert await records_of(cluster, "orders", 0) == acknowledged
        limit_files(daemon, resource.RLIM_INFINITY)
        assert (await append(cluster, 0, value)).error_code == ErrorCode.NONE
        daemon.kill()
        daemon.start()
        assert await records_of(cluster, "orders", 0) == [*acknowledged, value]
        await cluster.close()


async def test_commits_are_refused_as_a_whole_and_go_on_when_there_is_room(tmp_path: Path) -> None:
    with DaemonProcess(tmp_path / "data") as daemon:
        cluster = await connected(daemon)
        await create(cluster, "orders", 1)
        assert await commit(cluster, 1, "before", 5000) == ErrorCode.NONE
        limit_files(daemon, LIMIT)
        last = 1

        async def fill() -> None:
            nonlocal last
            for offset in range(2, 1000):
                assert await commit(cluster, offset, "m" * 4000, 1500) == ErrorCode.NONE
                last = offset

        with pytest.raises(RequestTimedOutError, match="could not write its log"):
            await fill()
        fetched = await cluster.call_coordinator("g", OffsetFetchRequest("g", None), OffsetFetchResponse)
        assert fetched.topics[0].partitions[0].committed_offset == last, "a refused commit must not be seen"
        limit_files(daemon, resource.RLIM_INFINITY)
        assert await commit(cluster, 5000, "after", 5000) == ErrorCode.NONE
        daemon.kill()
        daemon.start()
        fetched = await cluster.call_coordinator("g", OffsetFetchRequest("g", None), OffsetFetchResponse)
        assert fetched.topics[0].partitions[0].committed_offset == 5000
        await cluster.close()


async def test_a_producer_that_waits_for_room_says_why_and_says_it_once_in_a_while(tmp_path: Path) -> None:
    with DaemonProcess(tmp_path / "data") as daemon:
        async with Admin(daemon.address) as admin:
            await admin.create_topics({"orders": 2})
        async with Producer(daemon.address) as producer:
            for partition in range(2):
                await producer.send_and_wait("orders", b"fits", partition=partition)
            limit_files(daemon, LIMIT)
            with structlog.testing.capture_logs() as logs:
                waiting = [await producer.send("orders", b"x" * LIMIT, partition=partition) for partition in range(2)]
                await asyncio.wait(waiting, timeout=6)
            (warning,) = logs
            assert warning["log_level"] == "warning"
            assert warning["partition"] in ("orders-0", "orders-1")
            assert "File too large" in warning["error"]
            assert not any(each.done() for each in waiting)
            limit_files(daemon, resource.RLIM_INFINITY)
            assert [(await each).offset for each in waiting] == [1, 1]
