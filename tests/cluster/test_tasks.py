"""Tasks of Spark beside a leader that is stopped and keeps its connections: they go on with the next one."""

from __future__ import annotations

import asyncio
from pathlib import Path
from threading import Event

import pyarrow
import pytest

from client import Admin, Producer, TopicPartition
from client.spark.options import sink_options, source_options
from client.spark.planning import Range
from client.spark.tasks.arrow import Column, Rows
from client.spark.tasks.blocking_cluster import BlockingCluster
from client.spark.tasks.blocking_connection import Until
from client.spark.tasks.producer import TaskBatch, TaskProducer
from client.spark.tasks.reader import RangeReader
from tests.cluster.probe import created, in_sync
from tests.cluster.processes import Nodes, running

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(180)]

ROWS = 400
SCHEMA = pyarrow.schema([("value", pyarrow.binary()), ("offset", pyarrow.int64())])
SLOWEST_S = 30
"""Less than a request may take, which is two minutes."""


def given(nodes: Nodes, **more: str) -> dict[str, str]:
    return {"kafka.bootstrap.servers": nodes.address, "request.timeout.ms": "120000", **more}


def read(nodes: Nodes, topic: str, topic_id: str, half: Event, go_on: Event) -> list[int]:
    options = source_options(given(nodes, subscribe=topic, **{"fetch.max.bytes": "2048"}), streaming=False)
    numbers: list[int] = []
    for batch in RangeReader(options, Range(topic, 0, 0, ROWS, topic_id), SCHEMA).batches():
        numbers += [int(value) for value in batch.column(0).to_pylist()]
        if not half.is_set():
            half.set()
            assert go_on.wait(30)
    return numbers


def write(nodes: Nodes, topic: str, topic_id: str, half: Event, go_on: Event) -> list[int]:
    """What it has written, once all is acknowledged."""
    options = sink_options(given(nodes, topic=topic))
    connections = BlockingCluster(options.connection)
    connections.look_up((topic,), Until(30_000))
    producer = TaskProducer(connections, options)
    for number in range(ROWS):
        if number == ROWS // 2:
            producer.flush()
            half.set()
            assert go_on.wait(30)
        rows = Rows(Column.of(pyarrow.array([b"%d" % number], pyarrow.binary())), None, None)
        producer.send([TaskBatch(TopicPartition(topic, 0), rows, 1, None)])
    producer.flush()
    connections.close()
    return list(range(ROWS))


async def test_tasks_that_read_and_write_go_on_when_their_leader_is_stopped(tmp_path: Path) -> None:
    async with running(tmp_path, store="served") as nodes:
        topic = "lines"
        async with asyncio.timeout(60), Admin(nodes.address) as admin:
            await created(admin, 1, {}, topic)
            described = (await admin.describe_topics(topic))[topic]
        await in_sync(nodes.address, topic)
        for task in (write, read):
            half, go_on = Event(), Event()
            work = asyncio.create_task(asyncio.to_thread(task, nodes, topic, described.topic_id, half, go_on))
            assert await asyncio.to_thread(half.wait, 60)
            async with Admin(nodes.address) as admin:
                leader = (await admin.describe_topics(topic))[topic].partitions[0].leader
            nodes.pause(nodes[leader])
            go_on.set()
            try:
                async with asyncio.timeout(SLOWEST_S):
                    found = await work
            finally:
                nodes.resume(nodes[leader])
            assert found == list(range(ROWS))
            await in_sync(nodes.address, topic)
        async with Producer(nodes.address) as producer:
            assert (await producer.send_and_wait(topic, b"last", partition=0)).offset == ROWS
