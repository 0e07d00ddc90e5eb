"""Spark over Cohort: rows a second into Spark, out of it and through SQL, and what a micro-batch takes."""

from __future__ import annotations

import asyncio
import tempfile
from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from functools import partial
from pathlib import Path
from statistics import median
from time import perf_counter, sleep
from types import MappingProxyType
from typing import Any, Final

from client.admin import Admin
from client.bench.figures import Figure, Setting
from client.bench.records import values
from client.bench.spark_workers import Workers
from client.cli.failure import CommandError
from client.cli.processes import daemon
from client.producer.batch import RECORD_OVERHEAD_BYTES
from client.producer.producer import Producer

PARTITIONS: Final = 2
_BATCH: Final = 1000
_ROWS: Final = {100: 4_000_000, 1024: 800_000}
"""By the bytes of a value: enough that what a query costs at the start, some 0.3 s, is a small part."""
_MASTER: Final = "local[2]"
_SQL: Final = "SELECT key, upper(hex(substring(value, 1, 20))) AS value FROM rows"
_TIMEOUT_S: Final = 600
_MICRO_BATCHES: Final = 30


async def run(setting: Setting) -> AsyncIterator[Figure]:
    """A daemon on the same cores; a session is warmed up by one round that does not count."""
    async with daemon(setting.directory / "data", "--log-level", "error") as server:
        async with Admin(bootstrap_servers=server.address) as admin:
            topics = {"rows-100": PARTITIONS, "rows-1024": PARTITIONS, "out": PARTITIONS, "steady": PARTITIONS}
            await admin.create_topics(topics)
        counts = {size: (20_000 if setting.quick else rows) for size, rows in _ROWS.items()}
        for size, count in counts.items():
            await _fill(server.address, size, count)
        try:
            figures = await asyncio.to_thread(lambda: list(_measure(server.address, setting, counts)))
        except (ImportError, RuntimeError) as error:
            raise CommandError(f"spark: {error}") from error
    for figure in figures:
        yield figure


async def _fill(address: str, size: int, count: int) -> None:
    """Batches of 1,000 records with keys of 16 bytes."""
    step = _BATCH * PARTITIONS * 20
    batch_size = _BATCH * (size + 16 + RECORD_OVERHEAD_BYTES)
    async with Producer(bootstrap_servers=address, batch_size=batch_size) as producer:
        content = values(step, size)
        keys = [b"%016d" % number for number in range(step)]
        for left in range(count, 0, -step):
            sends = [
                producer.send_many(
                    f"rows-{size}",
                    content[index : min(left, step) : PARTITIONS],
                    keys[index : min(left, step) : PARTITIONS],
                    partition=index,
                )
                for index in range(PARTITIONS)
            ]
            await asyncio.gather(*sends)


def _measure(address: str, setting: Setting, counts: dict[int, int]) -> Iterator[Figure]:
    from client.spark import spark_session

    spark = spark_session("cohort-bench", _MASTER, settings={"spark.driver.memory": "2g"})
    spark.sparkContext.setLogLevel("ERROR")
    rounds = 1 if setting.quick else 3
    local: Figure | None = None
    try:
        for size, count in counts.items():
            for figure in _reading(spark, address, size, count, rounds):
                local = figure if figure.metric == "read_100_rows_per_s" else local
                yield figure
        yield from _through_sql(spark, address, counts[100], rounds)
        yield from _micro_batches(spark, address, 5 if setting.quick else _MICRO_BATCHES)
    finally:
        spark.stop()
    if local is not None:
        yield _two_workers(address, setting, local, rounds)


def _two_workers(address: str, setting: Setting, local: Figure, rounds: int) -> Figure:
    """The same reading by real processes: a master, and two workers with one core each."""
    from client.spark import spark_session

    directory = setting.directory / "workers"
    directory.mkdir()
    with Workers(directory) as workers:
        spark = spark_session("cohort-bench", workers.master, settings={"spark.executor.memory": "1g"})
        spark.sparkContext.setLogLevel("ERROR")
        try:
            took = _seconds(lambda: _read(spark, address, "rows-100"), rounds)
        finally:
            spark.stop()
    params = {**local.params, "master": "spark://, two workers of one core"}
    rate = local.params["records"] / took
    return Figure("spark", "two_workers_read_100_rows_per_s", rate, "1/s", local.value, f"{_MASTER}, same run", params)


def _read(spark: Any, address: str, topic: str) -> None:
    """Every column of every row, to nowhere."""
    _table(spark, address, topic).write.format("noop").mode("overwrite").save()


def _table(spark: Any, address: str, topic: str, **options: str) -> Any:
    reader = spark.read.format("cohort").option("bootstrap.servers", address).option("subscribe", topic)
    return reader.options(**options).load()


def _reading(spark: Any, address: str, size: int, count: int, rounds: int) -> Iterator[Figure]:
    """Rows next to the same rows through Python tuples, as a source without Arrow has it; megabytes next to Arrow batches
    that are ready, without a daemon."""

    def tuples() -> None:
        from client.bench.spark_tuples import CohortTuples

        spark.dataSource.register(CohortTuples)
        reader = spark.read.format("cohort-tuples").option("bootstrap.servers", address)
        reader.option("subscribe", f"rows-{size}").load().write.format("noop").mode("overwrite").save()

    def ready() -> None:
        _ready(spark, size, count).write.format("noop").mode("overwrite").save()

    fast, slow = _seconds(lambda: _read(spark, address, f"rows-{size}"), rounds), _seconds(tuples, 1)
    most = count * size / 1e6 / _seconds(ready, rounds)
    params = {"value_bytes": size, "records": count, "partitions": PARTITIONS, "batch": _BATCH, "master": _MASTER}
    name = "the same rows through Python tuples"
    yield Figure("spark", f"read_{size}_rows_per_s", count / fast, "1/s", count / slow, name, params)
    name = "Arrow batches that are ready"
    yield Figure("spark", f"read_{size}_mb_per_s", count * size / 1e6 / fast, "MB/s", most, name, params)


def _ready(spark: Any, size: int, count: int) -> Any:
    from client.bench.spark_floor import ReadyBatches

    spark.dataSource.register(ReadyBatches)
    options = {"rows": str(count), "size": str(size), "partitions": str(PARTITIONS)}
    return spark.read.format("cohort-floor").options(**options).load()


def _through_sql(spark: Any, address: str, count: int, rounds: int) -> Iterator[Figure]:
    """At least once next to nothing but the SQL, and exactly once next to at least once."""

    def work(delivery: str) -> None:
        _table(spark, address, "rows-100").createOrReplaceTempView("rows")
        writer = spark.sql(_SQL).write.format("cohort").mode("append").option("delivery", delivery)
        writer.option("bootstrap.servers", address).option("topic", "out").save()

    def ready() -> None:
        _ready(spark, 100, count).createOrReplaceTempView("rows")
        spark.sql(_SQL).write.format("noop").mode("overwrite").save()

    params = {"value_bytes": 100, "records": count, "partitions": PARTITIONS, "sql": _SQL, "master": _MASTER}
    rate, once = (count / _seconds(partial(work, name), rounds) for name in ("at-least-once", "exactly-once"))
    name = "the same SQL from Arrow batches that are ready to nowhere"
    yield Figure("spark", "read_sql_write_rows_per_s", rate, "1/s", count / _seconds(ready, rounds), name, params)
    yield Figure(
        "spark", "exactly_once_read_sql_write_rows_per_s", once, "1/s", rate, "at least once, same run", params
    )


def _micro_batches(spark: Any, address: str, wanted: int) -> Iterator[Figure]:
    """At least once next to batches of Spark's own source, and exactly once, with the offsets of a group, next to that."""
    least = _own_batches(spark, wanted)
    took = _batches_of(spark, address, wanted, {"delivery": "at-least-once"})
    group = {"group.id": "steady"}
    once = _batches_of(spark, address, wanted, {"delivery": "exactly-once", **group}, group)
    for metric, found, beside, name in (
        ("micro_batch_p50_ms", took, least, "Spark's own rate-micro-batch to nowhere"),
        ("exactly_once_micro_batch_p50_ms", once, median(took), "at least once without a group, same run"),
    ):
        params = {"batches": len(found), "partitions": PARTITIONS, "slowest_ms": max(found), "master": _MASTER}
        yield Figure("spark", metric, median(found), "ms", beside, name, params)


def _batches_of(
    spark: Any, address: str, wanted: int, sink: Mapping[str, str], source: Mapping[str, str] = MappingProxyType({})
) -> list[int]:
    """Records come all the time; a batch begins when the one before is done. The milliseconds of each."""
    common = {"bootstrap.servers": address}
    with tempfile.TemporaryDirectory(prefix="cohort-bench-") as checkpoint:
        query = (
            spark.readStream.format("cohort")
            .options(**common, subscribe="steady", startingOffsets="latest", **source)
            .load()
            .select("key", "value")
            .writeStream.format("cohort")
            .options(**common, topic="out", checkpointLocation=str(Path(checkpoint)), **sink)
            .start()
        )
        try:
            return asyncio.run(_steady(address, query, wanted))
        finally:
            query.stop()


def _own_batches(spark: Any, wanted: int) -> float:
    """Milliseconds that Spark takes for a batch without a Python worker."""
    with tempfile.TemporaryDirectory(prefix="cohort-bench-") as checkpoint:
        rows = (
            spark.readStream.format("rate-micro-batch").options(rowsPerBatch="2", numPartitions=str(PARTITIONS)).load()
        )
        query = rows.writeStream.format("noop").option("checkpointLocation", checkpoint).start()
        try:
            began = perf_counter()
            while len(query.recentProgress) <= wanted:
                if query.exception() is not None or perf_counter() - began > _TIMEOUT_S:
                    raise CommandError(f"spark: {len(query.recentProgress)} batches of its own: {query.exception()}")
                sleep(0.1)
            return median(int(one["durationMs"]["triggerExecution"]) for one in query.recentProgress[1:])
        finally:
            query.stop()


async def _steady(address: str, query: Any, wanted: int) -> list[int]:
    began = perf_counter()
    async with Producer(bootstrap_servers=address) as producer:
        while True:
            for partition in range(PARTITIONS):
                await producer.send_and_wait("steady", b"x" * 100, partition=partition)
            progress = [one for one in query.recentProgress if one["numInputRows"]]
            if len(progress) > wanted:
                return [int(one["durationMs"]["triggerExecution"]) for one in progress[1:]]
            if query.exception() is not None or perf_counter() - began > _TIMEOUT_S:
                raise CommandError(f"spark: {len(progress)} of {wanted} micro-batches: {query.exception()}")
            await asyncio.sleep(0.02)


def _seconds(work: Callable[[], None], rounds: int) -> float:
    """The median after a first round that warms up."""
    work()
    took = []
    for _ in range(rounds):
        began = perf_counter()
        work()
        took.append(perf_counter() - began)
    return median(took)
