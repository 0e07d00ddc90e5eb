"""Spark's own Kafka source and sink on the daemon's port for Kafka's clients, beside Cohort's on the same topic.

The rows that both sources read have to be the same, in each of the columns that both have, and what either sink has written
has to come out again, for both, by batches and by streams; otherwise the benchmark fails.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from importlib.metadata import version
from statistics import median
from time import perf_counter
from typing import Any, Final

from client.bench.figures import Figure, Kafka
from client.bench.spark_kafka import connector_settings, has_connector
from client.cli.failure import CommandError

PACKAGE: Final = "org.apache.spark:spark-sql-kafka-0-10_2.13"
_COLUMNS: Final = ("key", "value", "topic", "partition", "offset", "timestamp")
_OUT_COLUMNS: Final = ("key", "value")
_DELIVERY: Final[Mapping[str, Mapping[str, str]]] = {"cohort": {"delivery": "at-least-once"}, "kafka": {}}
"""By format what has its sink deliver as Kafka's does."""
_PEER: Final = 'format("kafka") on the same topic, in turns'


def source_settings(kafka: Kafka) -> dict[str, str]:
    """What has Spark load its Kafka source: what was named, what it has, or else the one of its version from Maven."""
    if kafka.jars or kafka.package or has_connector():
        return connector_settings(kafka)
    return {"spark.jars.packages": f"{PACKAGE}:{version('pyspark')}"}


def beside_kafka_source(
    spark: Any, address: str, kafka_address: str, rows: tuple[str, int], rounds: int
) -> Iterator[Figure]:
    """Reading a topic of so many ``rows``, writing them, and streams that read and write what there is, by both.

    Each writes to topics of its own, ``topics_of_sinks``, which are read back by both. Raises ``CommandError``.
    """
    topic, count = rows
    servers = {"cohort": {"bootstrap.servers": address}, "kafka": {"kafka.bootstrap.servers": kafka_address}}
    reading = {"subscribe": topic, "startingOffsets": "earliest"}
    tables = {name: spark.read.format(name).options(**where, **reading).load() for name, where in servers.items()}
    check_same({name: _digest(table, _COLUMNS) for name, table in tables.items()}, count)
    sinks = {name: {**where, **_DELIVERY[name]} for name, where in servers.items()}
    ready = tables["cohort"].select("key", "value").cache()

    def read(name: str) -> None:
        tables[name].write.format("noop").mode("overwrite").save()

    def write(name: str) -> None:
        ready.write.format(name).mode("append").options(**sinks[name], topic=_written(name)).save()

    def stream(name: str) -> None:
        table = spark.readStream.format(name).options(**servers[name], **reading).load().select("key", "value")
        with tempfile.TemporaryDirectory(prefix="cohort-bench-") as checkpoint:
            options = {**sinks[name], "topic": _streamed(name), "checkpointLocation": checkpoint}
            query = table.writeStream.format(name).options(**options).trigger(availableNow=True).start()
            query.awaitTermination()  # raises what the query failed by

    params = {"records": count, "topic": topic, "spark": version("pyspark")}
    try:
        one = _digest(ready, _OUT_COLUMNS)
        for metric, work in (
            ("read_beside_kafka_source_rows_per_s", read),
            ("write_beside_kafka_sink_rows_per_s", write),
            ("stream_beside_kafka_source_rows_per_s", stream),
        ):
            took = _took(work, rounds)
            ours, theirs = count / median(took["cohort"]), count / median(took["kafka"])
            yield Figure("spark", metric, ours, "1/s", theirs, _PEER, params)
    finally:
        ready.unpersist()
    for out in topics_of_sinks():
        place = {"subscribe": out, "startingOffsets": "earliest"}
        for name, where in servers.items():
            came = _digest(spark.read.format(name).options(**where, **place).load(), _OUT_COLUMNS)
            check_came_out(out, name, came, (one[0] * (rounds + 1), one[1] * (rounds + 1)))


def topics_of_sinks() -> tuple[str, ...]:
    """What the batches and the streams of both write to."""
    return *map(_written, _DELIVERY), *map(_streamed, _DELIVERY)


def _written(name: str) -> str:
    return f"written-by-{name}"


def _streamed(name: str) -> str:
    return f"streamed-by-{name}"


def check_came_out(topic: str, reader: str, found: tuple[int, int], expected: tuple[int, int]) -> None:
    """Raises ``CommandError`` unless a topic has the rows that were written to it: their number, and the sum of hashes."""
    if found != expected:
        raise CommandError(
            f'spark: of {expected[0]} rows that were written to {topic} format("{reader}") has read {found[0]} back, and '
            f"their columns {', '.join(_OUT_COLUMNS)} are {'the same' if found[1] == expected[1] else 'not the same'}"
        )


def check_same(digests: Mapping[str, tuple[int, int]], count: int) -> None:
    """Raises ``CommandError`` unless both formats have read ``count`` rows with one hash over all their columns."""
    if digests["cohort"] != digests["kafka"] or digests["kafka"][0] != count:
        raise CommandError(
            f'spark: of {count} rows format("cohort") has read {digests["cohort"][0]} and format("kafka") '
            f"{digests['kafka'][0]}, and their columns {', '.join(_COLUMNS)} are "
            f"{'the same' if digests['cohort'][1] == digests['kafka'][1] else 'not the same'}"
        )


def _digest(table: Any, columns: Sequence[str]) -> tuple[int, int]:
    """How many rows, and the sum of their hashes: the same for the same rows in any order."""
    hashes = table.selectExpr(f"xxhash64({', '.join(columns)}) AS hash")
    (row,) = hashes.selectExpr("count(*) AS rows", "coalesce(sum(CAST(hash AS DECIMAL(20, 0))), 0) AS hashes").collect()
    return int(row["rows"]), int(row["hashes"])


def _took(work: Callable[[str], None], rounds: int) -> dict[str, list[float]]:
    """The seconds of each round after the first, which warms up, by format; they take turns."""
    took: dict[str, list[float]] = {name: [] for name in _DELIVERY}
    for number in range(rounds + 1):
        for name, seconds in took.items():
            began = perf_counter()
            work(name)
            if number:
                seconds.append(perf_counter() - began)
    return took
