"""What clients tell of themselves: metrics() of producers, consumers and members, beside a daemon."""

from __future__ import annotations

import asyncio
from dataclasses import FrozenInstanceError
from pathlib import Path

import pytest

from client import Admin, Consumer, Member, MemberMetrics, Producer, RequestTimedOutError, TopicPartition
from tests.daemon_process import DaemonProcess

LINES = TopicPartition("lines", 0)


async def test_a_producer_counts_records_batches_and_what_waits(tmp_path: Path) -> None:
    with DaemonProcess(tmp_path) as daemon:
        async with Admin(daemon.address) as admin:
            await admin.create_topics({"lines": 1})
        producer = Producer(daemon.address, buffer_bytes=4_000_000, request_timeout_ms=300, delivery_timeout_ms=900)
        assert producer.metrics().buffer_capacity_bytes == 4_000_000
        async with producer:
            await producer.send_many("lines", [b"x"] * 100)
            metrics = producer.metrics()
            assert (metrics.records_acknowledged, metrics.records_failed, metrics.buffered_bytes) == (100, 0, 0)
            assert 1 <= metrics.batches_acknowledged <= 100
            daemon.kill()
            future = await producer.send("lines", b"lost")
            assert producer.metrics().buffered_bytes > 0
            with pytest.raises(RequestTimedOutError):
                await future
            metrics = producer.metrics()
            assert (metrics.records_acknowledged, metrics.records_failed, metrics.buffered_bytes) == (100, 1, 0)
            assert metrics.retries >= 1
            with pytest.raises(FrozenInstanceError):
                metrics.retries = 0  # type: ignore[misc]


async def test_a_consumer_knows_its_lag_without_asking(tmp_path: Path) -> None:
    with DaemonProcess(tmp_path, "--initial-rebalance-delay-ms", "0") as daemon:
        async with Admin(daemon.address) as admin:
            await admin.create_topics({"lines": 1})
        async with Producer(daemon.address) as producer:
            await producer.send_many("lines", [b"x"] * 50)
        consumer = Consumer("lines", bootstrap_servers=daemon.address, group_id="readers", auto_offset_reset="earliest")
        assert consumer.metrics().lag_records == {}
        async with consumer:
            async with asyncio.timeout(10):
                for _ in range(20):
                    await consumer.getone()
            metrics = consumer.metrics()
            assert metrics.member == MemberMetrics("stable", 1, generations_joined=1, shares_lost=0)
            assert metrics.lag_records == {LINES: 30}
            assert (metrics.assigned_partitions, metrics.paused_partitions) == (1, 0)
            assert metrics.fetched_bytes >= metrics.buffered_bytes > 0
            assert metrics.fetched_batches >= 1
            consumer.pause(LINES)
            assert consumer.metrics().paused_partitions == 1


async def test_a_member_counts_its_generations(tmp_path: Path) -> None:
    with DaemonProcess(tmp_path, "--initial-rebalance-delay-ms", "0") as daemon:
        async with Member("workers", bootstrap_servers=daemon.address) as first:
            assert first.metrics().generation == -1
            async with asyncio.timeout(20):
                await anext(first)
                async with Member("workers", bootstrap_servers=daemon.address) as second:
                    await asyncio.gather(anext(first), anext(second))
                    while first.metrics().state != "stable":
                        await asyncio.sleep(0.01)
            assert first.metrics().generation == 2
            assert first.metrics().generations_joined == 2
