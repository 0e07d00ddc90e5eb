"""Plans of Spark for a log that is cut and grows again before they are read (KIP-320), by an unclean election for real."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import pyarrow
import pytest
import structlog
from pyspark.sql.streaming.datasource import ReadAllAvailable
from pyspark.sql.types import BinaryType, LongType, StructField, StructType

from client import Admin, Producer
from client.spark.errors import DataLossError
from client.spark.options import source_options
from client.spark.planning import Range
from client.spark.source import CohortReader
from client.spark.stream import CohortStreamReader, RangePartition
from client.spark.tasks.reader import RangeReader
from coordinator.cluster import Cluster
from protocol.errors import ErrorCode
from tests.integration.test_unclean_election import described, elected

COLUMNS = StructType([StructField("value", BinaryType()), StructField("offset", LongType())])
SCHEMA = pyarrow.schema([("value", pyarrow.binary()), ("offset", pyarrow.int64())])


class CutAndGrown:
    """A topic ``t`` with one partition: ``both`` are on every node, then one node alone has more, and is lost."""

    def __init__(self, cluster: Cluster) -> None:
        self.cluster = cluster

    async def begin(self, *both: bytes) -> None:
        async with Admin(self.cluster.address) as admin:
            await admin.create_topics({"t": 1}, config={"min.insync.replicas": "1"})
        self.leader = (await described(self.cluster.address)).leader
        self.others = [node for node in range(3) if node != self.leader]
        await self.send(self.leader, *both)

    async def send(self, node: int, *values: bytes) -> None:
        async with Producer(self.cluster.addresses[node], acks="all") as producer:
            for value in values:
                await producer.send_and_wait("t", value)

    async def alone(self, *values: bytes) -> None:
        for node in self.others:
            await self.cluster.kill(node)
        await self.send(self.leader, *values)

    async def lose_what_one_had(self, *instead: bytes) -> None:
        """Others lead without it, and write ``instead``."""
        await self.cluster.kill(self.leader)
        await asyncio.gather(*(self.cluster.start(node) for node in self.others))
        alive = self.cluster.addresses[self.others[0]]
        while (await described(alive)).leader != -1:
            await asyncio.sleep(0.1)
        assert await elected(alive) == ErrorCode.NONE
        while (await described(alive)).leader not in self.others:
            await asyncio.sleep(0.1)
        await self.send(self.others[0], *instead)

    def options(self, *, streaming: bool = False, fail: bool = True) -> Any:
        given = {
            "kafka.bootstrap.servers": ",".join(self.cluster.addresses),
            "subscribe": "t",
            "failOnDataLoss": str(fail).lower(),
        }
        return source_options(given, streaming=streaming)

    async def read(self, part: Range, *, fail: bool = True) -> list[bytes]:
        def values() -> list[bytes]:
            batches = RangeReader(self.options(fail=fail), part, SCHEMA).batches()
            return [value for batch in batches for value in batch.column(0).to_pylist()]

        return await asyncio.to_thread(values)


async def test_a_batch_that_was_planned_before_the_log_was_cut_is_not_read_as_if_nothing_had_been() -> None:
    async with Cluster(nodes=3, log_level="error") as cluster, asyncio.timeout(90):
        log = CutAndGrown(cluster)
        await log.begin(b"a", b"b")
        await log.alone(b"lost", b"lost")
        (planned,) = await asyncio.to_thread(CohortReader(log.options(), COLUMNS).partitions)
        part = Range(*planned.value)
        assert (part.start, part.end) == (0, 4)
        assert part.start_epoch == part.end_epoch >= 0
        assert await log.read(part) == [b"a", b"b", b"lost", b"lost"]
        await log.lose_what_one_had(b"c", b"d", b"e")
        with pytest.raises(DataLossError, match="t-0 was planned up to offset 4, is another log from offset 2 on"):
            await log.read(part)
        with structlog.testing.capture_logs() as logs:
            assert await log.read(part, fail=False) == [b"a", b"b", b"c", b"d"]
        assert [entry["event"] for entry in logs] == ["records_lost_to_the_query"]
        without = part._replace(start_epoch=-1, end_epoch=-1)
        assert await log.read(without) == [b"a", b"b", b"c", b"d"], "a plan of an earlier release tells nothing"
        (again,) = await asyncio.to_thread(CohortReader(log.options(), COLUMNS).partitions)
        assert await log.read(Range(*again.value)) == [b"a", b"b", b"c", b"d", b"e"]


async def test_a_stream_notices_that_the_log_was_cut_below_where_it_stands() -> None:
    async with Cluster(nodes=3, log_level="error") as cluster, asyncio.timeout(90):
        log = CutAndGrown(cluster)
        await log.begin(b"a", b"b")
        await log.alone(b"lost", b"lost")
        stream = CohortStreamReader(log.options(streaming=True), COLUMNS)

        async def planned(start: Any) -> tuple[Any, list[Range]]:
            end = await asyncio.to_thread(stream.latestOffset, start, ReadAllAvailable())
            parts = await asyncio.to_thread(stream.partitions, start, end)
            return end, [part.range for part in parts if isinstance(part, RangePartition)]

        first, _ = await planned({"$cohort": {"v": 1}, "t": {"0": 0}})
        assert first["t"] == {"0": 4}
        assert list(first["$cohort"]["epochs"]["t"]) == ["0"]
        stored = json.loads(json.dumps(first))
        assert await asyncio.to_thread(stream.latestOffset, stored, ReadAllAvailable()) == stored, "nothing is new"
        await log.lose_what_one_had(b"c", b"d", b"e", b"f")
        second, (part,) = await planned(stored)
        assert (part.start, part.end, part.start_epoch) == (4, 6, stored["$cohort"]["epochs"]["t"]["0"])
        assert part.end_epoch > part.start_epoch
        with pytest.raises(DataLossError, match="t-0 was read from offset 2 to 3, and a new leader has other records"):
            await log.read(part)
        assert await log.read(part, fail=False) == [b"e", b"f"]
        third, parts = await planned(second)
        assert (third, parts) == (second, [])
        del stored["$cohort"]["epochs"]
        _, (old,) = await planned(stored)
        assert await log.read(old) == [b"e", b"f"], "a checkpoint of an earlier release is read as before"
        await asyncio.to_thread(stream.stop)
