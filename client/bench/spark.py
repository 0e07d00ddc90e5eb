"""Spark over Cohort: rows a second into Spark, out of it and through SQL, and what a micro-batch takes."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from functools import partial
from statistics import median
from time import perf_counter
from typing import Any, Final

from client.admin import Admin
from client.bench.figures import Figure, Setting
from client.bench.records import values
from client.bench.spark_batches import micro_batches
from client.bench.spark_kafka_source import beside_kafka_source, source_settings, topics_of_sinks
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
_MICRO_BATCHES: Final = 10
"""In each round."""


async def run(setting: Setting) -> AsyncIterator[Figure]:
    """A daemon on the same cores; a session is warmed up by one round that does not count."""
    port = ("--kafka-port", "-1") if setting.kafka.source else ()
    async with daemon(setting.directory / "data", "--log-level", "error", *port) as server:
        async with Admin(bootstrap_servers=server.address) as admin:
            topics = {"rows-100": PARTITIONS, "rows-1024": PARTITIONS, "out": PARTITIONS, "steady": PARTITIONS}
            if setting.kafka.source:
                topics |= dict.fromkeys(topics_of_sinks(), PARTITIONS)
            await admin.create_topics(topics)
        counts = {size: (20_000 if setting.quick else rows) for size, rows in _ROWS.items()}
        for size, count in counts.items():
            await _fill(server.address, size, count)
        try:
            figures = await asyncio.to_thread(
                lambda: list(_measure(server.address, server.kafka_address, setting, counts))
            )
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


def _measure(address: str, kafka_address: str, setting: Setting, counts: dict[int, int]) -> Iterator[Figure]:
    from client.spark import spark_session

    connector = source_settings(setting.kafka) if setting.kafka.source else {}
    spark = spark_session("cohort-bench", _MASTER, settings={"spark.driver.memory": "2g", **connector})
    spark.sparkContext.setLogLevel("ERROR")
    rounds = 1 if setting.quick else 3
    local: Figure | None = None
    try:
        for size, count in counts.items():
            for figure in _reading(spark, address, size, count, rounds):
                local = figure if figure.metric == "read_100_rows_per_s" else local
                yield figure
        if setting.kafka.source:
            yield from beside_kafka_source(spark, address, kafka_address, ("rows-100", counts[100]), rounds)
        yield from _through_sql(spark, address, counts[100], rounds)
        yield from _sink_alone(spark, address, counts[100] // 2, rounds)
        yield from micro_batches(spark, address, 5 if setting.quick else _MICRO_BATCHES, rounds)
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

    fast, floor = _alternating((lambda: _read(spark, address, f"rows-{size}"), ready), rounds)
    slow, most = _seconds(tuples, 1), count * size / 1e6 / floor
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
    works = (partial(work, "at-least-once"), partial(work, "exactly-once"), ready)
    rate, once, floor = (count / seconds for seconds in _alternating(works, rounds))
    name = "the same SQL from Arrow batches that are ready to nowhere"
    yield Figure("spark", "read_sql_write_rows_per_s", rate, "1/s", floor, name, params)
    yield Figure(
        "spark", "exactly_once_read_sql_write_rows_per_s", once, "1/s", rate, "at least once, same run", params
    )


def _sink_alone(spark: Any, address: str, count: int, rounds: int) -> Iterator[Figure]:
    """Rows that Spark has in its memory already."""
    rows = _ready(spark, 100, count).select("key", "value").cache()

    def write(form: str, **options: str) -> None:
        rows.write.format(form).mode("append").options(**options).save()

    options = {"bootstrap.servers": address, "topic": "out", "delivery": "at-least-once"}
    try:
        rows.count()
        took, floor = _alternating((partial(write, "cohort", **options), partial(write, "cohort-floor")), rounds)
    finally:
        rows.unpersist()
    params = {"value_bytes": 100, "records": count, "partitions": PARTITIONS, "master": _MASTER}
    name = "the same rows to a sink in Python that drops them"
    yield Figure("spark", "write_100_rows_per_s", count / took, "1/s", count / floor, name, params)


def _alternating(works: Sequence[Callable[[], None]], rounds: int) -> list[float]:
    """The median seconds of each, after a first round that warms up. They take turns, as machines change."""
    took: list[list[float]] = [[] for _ in works]
    for number in range(rounds + 1):
        for index, work in enumerate(works):
            began = perf_counter()
            work()
            if number:
                took[index].append(perf_counter() - began)
    return [median(seconds) for seconds in took]


def _seconds(work: Callable[[], None], rounds: int) -> float:
    return _alternating((work,), rounds)[0]
