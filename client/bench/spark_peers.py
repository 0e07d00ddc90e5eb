"""One job for several peers: what a format of Spark reads and writes, and how. Plain values, which go through JSON.

``jobs`` are the same for every peer: only format and options differ. They run in a program of their own, see
``client.bench.spark_program``.
"""

from __future__ import annotations

import tempfile
from collections.abc import Iterator, Mapping
from statistics import median
from time import perf_counter, sleep
from typing import Any, Final, NamedTuple
from uuid import uuid4

PARTITIONS: Final = 2
KEY_BYTES: Final = 16
VALUE_BYTES: Final = 100
SQL: Final = "SELECT key, CAST(upper(hex(substring(value, 1, 20))) AS BINARY) AS value FROM rows"
TOPICS: Final = ("rows", "written", "out", "steady", "copied")
_BATCHES: Final = 5
_SMALL_BATCH: Final = 200
_TIMEOUT_S: Final = 600
_WARM: Final = 3
"""Micro-batches of a query that do not count: its first ones start processes."""


class Peer(NamedTuple):
    """A format with its options. ``group_id`` is the group whose offsets go with the rows of transactions, "" for none."""

    name: str
    format: str
    connection: Mapping[str, str]
    prefix: str
    sink: Mapping[str, str]
    group_id: str = ""

    def topic(self, name: str) -> str:
        """One of ``TOPICS`` as it is called there."""
        return f"{self.prefix}-{name}"

    def table(self, spark: Any, name: str) -> Any:
        """A topic as a table."""
        reader = spark.read.format(self.format).options(**self.connection)
        return reader.option("subscribe", self.topic(name)).option("startingOffsets", "earliest").load()

    def stream(self, spark: Any, name: str, most: int, use: str) -> Any:
        """A topic from its first row on, ``most`` rows a batch. ``use`` tells the groups of different queries apart."""
        options = {"subscribe": self.topic(name), "startingOffsets": "earliest", "maxOffsetsPerTrigger": str(most)}
        return spark.readStream.format(self.format).options(**self.connection, **options, **self._group(use)).load()

    def write(self, rows: Any, name: str) -> None:
        """Writes a table to a topic, as one batch."""
        named = (
            {"transactional.id": f"{self.prefix}-{uuid4().hex}", "transaction.version": "0"} if self.group_id else {}
        )
        options = {**self.connection, **self.sink, **named, "topic": self.topic(name)}
        rows.write.format(self.format).mode("append").options(**options).save()

    def written(self, rows: Any, name: str, checkpoint: str, use: str) -> Any:
        """The writer of a stream, not started."""
        options = {**self.connection, **self.sink, **self._group(use), "topic": self.topic(name)}
        return rows.writeStream.format(self.format).options(**options, checkpointLocation=checkpoint)

    def _group(self, use: str) -> dict[str, str]:
        return {"group.id": f"{self.group_id}-{use}"} if self.group_id else {}


def generated(spark: Any, count: int) -> Any:
    """Rows that all differ, made by the JVM."""
    columns = [
        f"cast(lpad(cast(id AS string), {size}, '0') AS binary) AS {name}"
        for name, size in (("key", KEY_BYTES), ("value", VALUE_BYTES))
    ]
    return spark.range(0, count, 1, PARTITIONS).selectExpr(*columns)


def timed(spark: Any, peer: Peer, count: int, wanted: int) -> Iterator[tuple[str, float]]:
    """One round of every job for one peer, after ``fill``: rows a second, and the milliseconds of a micro-batch."""
    began = perf_counter()
    peer.write(generated(spark, count), "written")
    yield "write_rows_per_s", count / (perf_counter() - began)
    began = perf_counter()
    peer.table(spark, "rows").write.format("noop").mode("overwrite").save()
    yield "read_rows_per_s", count / (perf_counter() - began)
    yield "stream_rows_per_s", count / (sum(_streamed(spark, peer, count)) / 1000)
    yield "micro_batch_p50_ms", median(_small(spark, peer, wanted))


def fill(spark: Any, peer: Peer, count: int) -> None:
    """Writes what the jobs read."""
    peer.write(generated(spark, count), "rows")


def _streamed(spark: Any, peer: Peer, count: int) -> list[int]:
    """The milliseconds of each batch of a query that reads all rows, through SQL, to another topic."""
    with tempfile.TemporaryDirectory(prefix="cohort-bench-") as checkpoint:
        peer.stream(spark, "rows", count // _BATCHES, checkpoint).createOrReplaceTempView("rows")
        writer = peer.written(spark.sql(SQL), "out", checkpoint, checkpoint).trigger(availableNow=True)
        query = writer.start()
        if not query.awaitTermination(_TIMEOUT_S):
            raise TimeoutError(f"{peer.name}: the query was not done within {_TIMEOUT_S} s")
        return [int(one["durationMs"]["triggerExecution"]) for one in query.recentProgress if one["numInputRows"]]


def _small(spark: Any, peer: Peer, wanted: int) -> list[int]:
    """The milliseconds of batches of few rows, one after the other."""
    with tempfile.TemporaryDirectory(prefix="cohort-bench-") as checkpoint:
        rows = peer.stream(spark, "rows", _SMALL_BATCH, checkpoint).select("key", "value")
        query = peer.written(rows, "steady", checkpoint, checkpoint).start()
        try:
            began = perf_counter()
            while True:
                found = [one for one in query.recentProgress if one["numInputRows"]]
                if len(found) >= wanted + _WARM:
                    return [int(one["durationMs"]["triggerExecution"]) for one in found[_WARM:]]
                if query.exception() is not None or perf_counter() - began > _TIMEOUT_S:
                    raise TimeoutError(f"{peer.name}: {len(found)} of {wanted} micro-batches: {query.exception()}")
                sleep(0.1)
        finally:
            query.stop()


def delivered(spark: Any, peer: Peer, count: int) -> dict[str, int]:
    """How often the rows are in the topic to which they were copied: ``twice`` counts each that is too many."""
    each = peer.table(spark, "copied").groupBy("key").count()
    found = each.selectExpr("count(*) AS keys", "coalesce(sum(count), 0) AS rows").collect()[0]
    return {"twice": int(found["rows"] - found["keys"]), "lost": int(count - found["keys"])}
