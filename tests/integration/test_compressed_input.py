"""Compressed batches of hostile producers over a socket: refused by name, the log stays, the connection goes on."""

from __future__ import annotations

import sys
from collections.abc import AsyncIterator

import pytest

from client import Admin, Consumer, Producer, TopicPartition
from client.transport.cluster import Cluster
from coordinator import Coordinator
from protocol.compression import Compression
from protocol.errors import ErrorCode
from protocol.messages.records import (
    PartitionProduceData,
    PartitionProduceResponse,
    ProduceRequest,
    ProduceResponse,
    TopicProduceData,
)
from tests.hostile_batches import good, hostile

T0 = TopicPartition("t", 0)


@pytest.fixture
async def coordinator() -> AsyncIterator[Coordinator]:
    async with Coordinator(log_level="error") as running, Admin(running.address) as admin:
        await admin.create_topics({"t": 2})
        yield running


@pytest.fixture
async def cluster(coordinator: Coordinator) -> AsyncIterator[Cluster]:
    made = Cluster(coordinator.address, client_id="hostile")
    await made.start()
    yield made
    await made.close()


async def produce(cluster: Cluster, *batches: bytes) -> tuple[PartitionProduceResponse, ...]:
    """One request, a batch a partition."""
    partitions = tuple(PartitionProduceData(index, batch) for index, batch in enumerate(batches))
    request = ProduceRequest(None, -1, 10_000, (TopicProduceData("t", partitions),))
    return (await cluster.call(request, ProduceResponse)).responses[0].partition_responses


@pytest.mark.parametrize("compression", ["gzip", "zstd"])
async def test_what_is_hidden_in_a_compressed_batch_does_not_reach_the_log(
    coordinator: Coordinator, cluster: Cluster, compression: Compression
) -> None:
    connection = await cluster._any_connection()
    assert [(await produce(cluster, good(compression)))[0].base_offset] == [0]
    async with Consumer(bootstrap_servers=coordinator.address, auto_offset_reset="earliest") as consumer:
        for number, (kind, (batch, code, says)) in enumerate(hostile(compression).items()):
            for records in (batch, good(compression) + batch):
                refused, taken = await produce(cluster, records, good(compression))
                assert (refused.error_code, says in refused.error_message) == (code, True), (kind, refused)
                assert (taken.error_code, taken.base_offset % 2) == (ErrorCode.NONE, 0), kind
            assert (await consumer.end_offsets([T0]))[T0] == 2, kind
            assert (await produce(cluster, b"", good(compression)))[1].base_offset == 6 * number + 4
        assert not connection.closed
        assert (await produce(cluster, good(compression)))[0].base_offset == 2
        consumer.assign([T0])
        values: list[bytes | None] = []
        while len(values) < 4:
            for records_read in (await consumer.getmany(timeout_ms=1000)).values():
                values += [record.value for record in records_read]
        assert values == [bytes(range(256)), b"w" * 99] * 2


async def test_a_producer_of_zstd_learns_that_the_daemon_has_none(
    coordinator: Coordinator, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with Producer(coordinator.address, compression="zstd") as producer:
        await producer.send_and_wait("t", b"v", partition=0)
        packed = good("zstd")
        monkeypatch.setitem(sys.modules, "zstandard", None)
        cluster = Cluster(coordinator.address, client_id="raw")
        await cluster.start()
        refused, taken = await produce(cluster, packed, good("gzip"))
        await cluster.close()
        assert refused.error_code == ErrorCode.UNSUPPORTED_COMPRESSION_TYPE
        assert "install aiocohort[zstd]" in refused.error_message
        assert taken.error_code == ErrorCode.NONE
        monkeypatch.undo()
        assert (await producer.send_and_wait("t", b"v", partition=0)).offset == 1
