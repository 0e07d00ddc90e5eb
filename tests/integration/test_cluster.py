"""Three daemons on one loop: what the death and the stop of one does to the clients of all."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import pytest
import structlog

from client import Admin, Consumer, Producer
from coordinator.cluster import Cluster

pytestmark = pytest.mark.asyncio
PARTITIONS = 6


@pytest.fixture
async def cluster() -> AsyncIterator[Cluster]:
    async with Cluster(nodes=3) as running:
        async with Admin(running.address) as admin:
            await admin.create_topics({"lines": PARTITIONS})
        yield running


async def leaders(cluster: Cluster) -> list[int]:
    async with Admin(cluster.address) as admin:
        found = await admin.describe_topics("lines")
        return [partition.leader for partition in found["lines"].partitions]


async def read(cluster: Cluster, count: int) -> list[bytes]:
    values: list[bytes] = []
    async with Consumer(
        "lines", bootstrap_servers=cluster.address, group_id="readers", auto_offset_reset="earliest"
    ) as consumer:
        async with asyncio.timeout(30):
            while len(values) < count:
                for records in (await consumer.getmany(timeout_ms=500)).values():
                    values += [record.value or b"" for record in records]
        await consumer.commit()
    return values


async def test_what_was_acknowledged_outlives_the_node_that_led_it(cluster: Cluster) -> None:
    async with Producer(cluster.address) as producer:
        sent = [f"{number}".encode() for number in range(120)]
        for number, value in enumerate(sent):
            if number == 40:
                await cluster.kill((await leaders(cluster))[0])
            await producer.send_and_wait("lines", value, partition=number % PARTITIONS)
    assert sorted(await read(cluster, len(sent))) == sorted(sent)


async def test_a_node_that_stops_hands_over_first(cluster: Cluster) -> None:
    async with Producer(cluster.address) as producer:
        longest = 0.0
        stopping: asyncio.Task[None] | None = None
        for number in range(400):
            if number == 100:
                stopping = asyncio.create_task(cluster.stop(1))
            began = asyncio.get_running_loop().time()
            await producer.send_and_wait("lines", b"x", partition=number % PARTITIONS)
            longest = max(longest, asyncio.get_running_loop().time() - began)
        assert stopping is not None
        await stopping
    assert 1 not in await leaders(cluster)
    assert len(await read(cluster, 400)) == 400


async def test_a_stop_waits_no_longer_than_it_may_for_others_to_lead() -> None:
    settings = {
        "node_session_ms": 60_000,
        "controlled_shutdown_ms": 400,
    }  # without the bound a stop would wait for either
    async with Cluster(nodes=2, **settings) as cluster:
        async with Admin(cluster.address) as admin:
            await admin.create_topics({"lines": PARTITIONS})
        led = (await leaders(cluster)).count(0)
        store = cluster._nodes[0]._store
        assert store is not None
        store.cut_off()  # it cannot say that it stops
        began = asyncio.get_running_loop().time()
        with structlog.testing.capture_logs() as events:
            await cluster.stop(0)
        assert 0.4 <= asyncio.get_running_loop().time() - began < 20
    told = [event for event in events if event["event"] == "leaderships_not_handed_over"]
    assert [event["timeout_s"] for event in told] == [0.4]
    assert told[0]["partitions"] >= led > 0  # those of the coordinators too


async def test_a_node_that_comes_back_is_in_sync_again(cluster: Cluster) -> None:
    async with Producer(cluster.address) as producer:
        await cluster.kill(2)
        for number in range(60):
            await producer.send_and_wait("lines", b"x", partition=number % PARTITIONS)
        await cluster.start(2)
        async with Admin(cluster.address) as admin, asyncio.timeout(30):
            while True:
                found = await admin.describe_topics("lines")
                if all(len(partition.in_sync_replicas) == 3 for partition in found["lines"].partitions):
                    break
                await asyncio.sleep(0.1)
    await cluster.kill(0)  # two of three are enough, and 2 is one of them
    assert len(await read(cluster, 60)) == 60
