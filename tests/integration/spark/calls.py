"""What Spark does with a data source, without Spark: pickled readers and writers, offsets through JSON."""

from __future__ import annotations

import asyncio
import json
import pickle
from collections.abc import Callable, Coroutine
from typing import Any

import pyarrow
import pytest
from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    DataType,
    IntegerType,
    LongType,
    StringType,
    StructField,
    StructType,
    TimestampType,
)

from client import Admin, Producer
from client.spark.source import CohortDataSource

_TYPES: dict[str, DataType] = {
    "key": BinaryType(),
    "value": BinaryType(),
    "topic": StringType(),
    "partition": IntegerType(),
    "offset": LongType(),
    "timestamp": TimestampType(),
    "timestampType": IntegerType(),
    "headers": ArrayType(StructType([StructField("key", StringType()), StructField("value", BinaryType())])),
}
IN_THE_SESSION = [
    pytest.mark.spark,
    pytest.mark.timeout(1200),
    pytest.mark.filterwarnings("ignore::ResourceWarning", "ignore::pytest.PytestUnraisableExceptionWarning"),
]
"""Marks of tests that share a session: the collector may close sockets of py4j in any of them."""
FULL = ("key", "value", "topic", "partition", "offset", "timestamp", "timestampType")


def schema(*names: str) -> StructType:
    """Columns of the source by name; all but headers when none is named."""
    return StructType([StructField(name, _TYPES[name]) for name in names or FULL])


def run(work: Coroutine[Any, Any, Any]) -> Any:
    return asyncio.run(work)


def prepare(address: str, topics: dict[str, int], values: dict[str, int] | None = None) -> None:
    """Creates topics, and fills some with values 0, 1, 2, ... with the number as key."""

    async def work() -> None:
        async with Admin(address) as admin:
            await admin.create_topics(topics)
        for topic, count in (values or {}).items():
            await produce(address, topic, range(count))

    run(work())


async def produce(address: str, topic: str, numbers: range, batch: int = 1000) -> None:
    async with Producer(address) as producer:
        for start in range(0, len(numbers), batch):
            chosen = [b"%d" % number for number in numbers[start : start + batch]]
            await producer.send_many(topic, chosen, chosen)


def administer(address: str, work: Callable[[Admin], Coroutine[Any, Any, Any]]) -> Any:
    async def whole() -> Any:
        async with Admin(address) as admin:
            return await work(admin)

    return run(whole())


def tasks(reader: Any, partitions: Any) -> pyarrow.Table:
    """What the tasks of these partitions read: reader and partitions go through pickle, as to another process."""
    copy = pickle.loads(pickle.dumps(reader))
    batches = [batch for one in partitions for batch in copy.read(pickle.loads(pickle.dumps(one)))]
    return pyarrow.Table.from_batches(batches) if batches else pyarrow.table({"value": pyarrow.array([], "binary")})


def read(address: str, *columns: str, **options: str) -> pyarrow.Table:
    """A whole batch."""
    given = {"bootstrap.servers": address, **{name.replace("_", "."): value for name, value in options.items()}}
    reader = CohortDataSource(given).reader(schema(*columns))
    return tasks(reader, reader.partitions())


def numbers(table: pyarrow.Table) -> list[int]:
    """The values of a table as sorted numbers."""
    return sorted(int(value) for value in table.column("value").to_pylist())


class Query:
    """A streaming query as Spark drives it: offsets survive as text, batches run one after the other."""

    def __init__(self, address: str, checkpoint: dict[str, Any] | None = None, **options: str) -> None:
        given = {"bootstrap.servers": address, **{name.replace("_", "."): value for name, value in options.items()}}
        self.reader = CohortDataSource(given).streamReader(schema())
        self.limit = self.reader.getDefaultReadLimit()
        try:
            self.at: dict[str, Any] = checkpoint or through_json(self.reader.initialOffset())
        except BaseException:
            self.reader.stop()  # as Spark does, whatever happens
            raise

    def plan(self) -> dict[str, Any]:
        """Where the next batch ends."""
        return through_json(self.reader.latestOffset(self.at, self.limit))

    def batch(self) -> pyarrow.Table | None:
        """One micro-batch from plan to end; None when there is nothing new."""
        end = self.plan()
        if json.dumps(end) == json.dumps(self.at):
            return None
        table = tasks(self.reader, self.reader.partitions(self.at, end))
        self.at = end
        return table

    def everything(self) -> list[int]:
        """All values until there is nothing new, in sorted order."""
        found: list[int] = []
        while (table := self.batch()) is not None:
            found += numbers(table)
        return sorted(found)


def through_json(offset: dict[str, Any]) -> dict[str, Any]:
    copied: dict[str, Any] = json.loads(json.dumps(offset))
    return copied
