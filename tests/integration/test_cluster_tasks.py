"""What tasks of Spark do on a cluster of three real nodes, one of which dies meanwhile: they write once and read once."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncIterator
from threading import Event

import pyarrow
import pytest

from client import Admin, TopicPartition
from client.spark.options import sink_options, source_options
from client.spark.planning import Range
from client.spark.tasks.arrow import Column, Rows
from client.spark.tasks.blocking_cluster import BlockingCluster
from client.spark.tasks.blocking_connection import Until
from client.spark.tasks.producer import TaskBatch, TaskProducer
from client.spark.tasks.reader import RangeReader
from coordinator.cluster import Cluster

PARTITIONS = 3
RECORDS = 1_200
SCHEMA = pyarrow.schema([("value", pyarrow.binary()), ("offset", pyarrow.int64())])


@pytest.fixture
async def cluster() -> AsyncIterator[Cluster]:
    async with Cluster(nodes=3, log_level="error") as running:
        async with Admin(running.address) as admin:
            await admin.create_topics({"t": PARTITIONS}, replication_factor=3)
        yield running


def given(cluster: Cluster, **more: str) -> dict[str, str]:
    return {"kafka.bootstrap.servers": cluster.address, **more}


def write(cluster: Cluster, half: Event, go_on: Event) -> None:
    """One task: a batch of one row after the other, to all partitions in turn; it waits in the middle."""
    options = sink_options(given(cluster, topic="t"))
    connections = BlockingCluster(options.connection)
    connections.look_up(("t",), Until(30_000))
    producer = TaskProducer(connections, options)
    for number in range(RECORDS):
        if number == RECORDS // 2:
            half.set()
            assert go_on.wait(30)
        rows = Rows(Column.of(pyarrow.array([b"%d" % number], pyarrow.binary())), None, None)
        producer.send([TaskBatch(TopicPartition("t", number % PARTITIONS), rows, 1, None)])
    producer.flush()
    connections.close()


def read(cluster: Cluster, partition: int, topic_id: str, half: Event, go_on: Event) -> list[int]:
    """One task: a whole partition, in many small answers; it waits in the middle."""
    options = source_options(given(cluster, subscribe="t", **{"fetch.max.bytes": "4096"}), streaming=False)
    numbers: list[int] = []
    planned = Range("t", partition, 0, RECORDS // PARTITIONS, topic_id)
    for batch in RangeReader(options, planned, SCHEMA).batches():
        numbers += [int(value) for value in batch.column(0).to_pylist()]
        if len(numbers) > RECORDS // PARTITIONS // 2 and not half.is_set():
            half.set()
            assert go_on.wait(30)
    return numbers


async def leader_of_most(cluster: Cluster) -> tuple[int, str]:
    async with Admin(cluster.address) as admin:
        topic = (await admin.describe_topics("t"))["t"]
    return Counter(each.leader for each in topic.partitions).most_common(1)[0][0], topic.topic_id


async def test_tasks_write_and_read_each_row_once_while_leaders_die(cluster: Cluster) -> None:
    half, go_on = Event(), Event()
    writing = asyncio.create_task(asyncio.to_thread(write, cluster, half, go_on))
    assert await asyncio.to_thread(half.wait, 60)
    victim, topic_id = await leader_of_most(cluster)
    await cluster.kill(victim)
    go_on.set()
    async with asyncio.timeout(60):
        await writing
    await cluster.start(victim)

    steps = [(Event(), Event()) for _ in range(PARTITIONS)]
    reading = [
        asyncio.create_task(asyncio.to_thread(read, cluster, index, topic_id, *steps[index]))
        for index in range(PARTITIONS)
    ]
    for half, _ in steps:
        assert await asyncio.to_thread(half.wait, 60)
    victim, _ = await leader_of_most(cluster)
    await cluster.kill(victim)
    for _, go_on in steps:
        go_on.set()
    async with asyncio.timeout(60):
        assert await asyncio.gather(*reading) == [[*range(index, RECORDS, PARTITIONS)] for index in range(PARTITIONS)]
