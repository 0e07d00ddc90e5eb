"""Spark's own Kafka source and sink on the daemon's port for Kafka's clients, beside Cohort's on the same topic.

The rows that both sources read have to be the same, in each of the columns that both have; otherwise there is no figure.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from importlib.metadata import version
from statistics import median
from time import perf_counter
from typing import Any, Final

from client.bench.figures import Figure, Kafka
from client.bench.spark_kafka import connector_settings, has_connector
from client.cli.failure import CommandError

PACKAGE: Final = "org.apache.spark:spark-sql-kafka-0-10_2.13"
_COLUMNS: Final = ("key", "value", "topic", "partition", "offset", "timestamp")
_PEER: Final = 'format("kafka") on the same topic, in turns'


def source_settings(kafka: Kafka) -> dict[str, str]:
    """What has Spark load its Kafka source: what was named, what it has, or else the one of its version from Maven."""
    if kafka.jars or kafka.package or has_connector():
        return connector_settings(kafka)
    return {"spark.jars.packages": f"{PACKAGE}:{version('pyspark')}"}


def beside_kafka_source(
    spark: Any, address: str, kafka_address: str, rows: tuple[str, int], rounds: int
) -> Iterator[Figure]:
    """Reading a topic of so many ``rows``, and writing them to the topic "out", by both. Raises ``CommandError``."""
    topic, count = rows
    readers = {
        "cohort": spark.read.format("cohort").option("bootstrap.servers", address),
        "kafka": spark.read.format("kafka").option("kafka.bootstrap.servers", kafka_address),
    }
    tables = {
        name: reader.option("subscribe", topic).option("startingOffsets", "earliest").load()
        for name, reader in readers.items()
    }
    digests = {name: _digest(table) for name, table in tables.items()}
    check_same(digests, count)
    sinks = {
        "cohort": {"bootstrap.servers": address, "topic": "out", "delivery": "at-least-once"},
        "kafka": {"kafka.bootstrap.servers": kafka_address, "topic": "out"},
    }
    params = {"records": count, "topic": topic, "spark": version("pyspark")}
    ready = tables["cohort"].select("key", "value").cache()
    try:
        ready.count()
        reading, writing = _took(tables, sinks, ready, rounds)
    finally:
        ready.unpersist()
    for metric, took in (
        ("read_beside_kafka_source_rows_per_s", reading),
        ("write_beside_kafka_sink_rows_per_s", writing),
    ):
        ours, theirs = count / median(took["cohort"]), count / median(took["kafka"])
        yield Figure("spark", metric, ours, "1/s", theirs, _PEER, params)


def check_same(digests: Mapping[str, tuple[int, int]], count: int) -> None:
    """Raises ``CommandError`` unless both formats have read ``count`` rows with one hash over all their columns."""
    if digests["cohort"] != digests["kafka"] or digests["kafka"][0] != count:
        raise CommandError(
            f'spark: of {count} rows format("cohort") has read {digests["cohort"][0]} and format("kafka") '
            f"{digests['kafka'][0]}, and their columns {', '.join(_COLUMNS)} are "
            f"{'the same' if digests['cohort'][1] == digests['kafka'][1] else 'not the same'}"
        )


def _digest(table: Any) -> tuple[int, int]:
    """How many rows, and the sum of their hashes: the same for the same rows in any order."""
    hashes = table.selectExpr(f"xxhash64({', '.join(_COLUMNS)}) AS hash")
    (row,) = hashes.selectExpr("count(*) AS rows", "coalesce(sum(CAST(hash AS DECIMAL(20, 0))), 0) AS hashes").collect()
    return int(row["rows"]), int(row["hashes"])


def _took(
    tables: Mapping[str, Any], sinks: Mapping[str, Mapping[str, str]], ready: Any, rounds: int
) -> tuple[dict[str, list[float]], dict[str, list[float]]]:
    """The seconds of each round after the first, which warms up, by format: of reading to nowhere, and of writing."""
    reading: dict[str, list[float]] = {name: [] for name in tables}
    writing: dict[str, list[float]] = {name: [] for name in tables}
    for number in range(rounds + 1):
        for name, table in tables.items():
            began = perf_counter()
            table.write.format("noop").mode("overwrite").save()
            read = perf_counter()
            ready.write.format(name).mode("append").options(**sinks[name]).save()
            if number:
                reading[name].append(read - began)
                writing[name].append(perf_counter() - read)
    return reading, writing
