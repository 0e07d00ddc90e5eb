"""Pipelines on Spark: lines of files as a stream, counted in windows of event time by SQL, or turned into a record each.

The functions are what a program of its own would have; ``cohort demo --spark`` and the tests run them.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any, Final

LINES: Final = "lines"
COUNTS: Final = "counts"
WORDS: Final = "words"

SQL: Final = r"""
    SELECT window.start AS minute,
           count(*) AS lines,
           sum(size(filter(split(line, '\\s+'), word -> word <> ''))) AS words,
           count_if(lower(line) LIKE '%error%') AS errors
    FROM lines
    GROUP BY window(timestamp, '1 minute')
"""


def counts(spark: Any, address: str, group: str, **options: str) -> Any:
    """Lines, words and lines about errors by minute of event time; a minute is final 30 seconds after it."""
    lines = _lines(spark, address, group, options).selectExpr("timestamp", "string(value) AS line")
    lines.withWatermark("timestamp", "30 seconds").createOrReplaceTempView("lines")
    return spark.sql(SQL)


def to_topic(table: Any, address: str, directory: Path) -> Any:
    """A writer of every change of a minute to a topic, keyed by the minute. Call ``trigger`` and ``start`` on it.

    Spark gives changes (output mode update) to no sink that is written in Python, but it does to ``foreachBatch``.
    """

    def write(changed: Any, batch_id: int) -> None:
        rows = changed.selectExpr("date_format(minute, 'yyyy-MM-dd HH:mm') AS key", "to_json(struct(*)) AS value")
        rows.write.format("cohort").mode("append").options(**{"bootstrap.servers": address, "topic": COUNTS}).save()

    checkpoint = str(directory / "checkpoint-topic")
    return table.writeStream.foreachBatch(write).outputMode("update").option("checkpointLocation", checkpoint)


def to_parquet(table: Any, directory: Path) -> Any:
    """A writer of the minutes that are final to Parquet files. Call ``trigger`` and ``start`` on it."""
    return (
        table.writeStream.format("parquet")
        .outputMode("append")
        .option("path", str(directory / "parquet"))
        .option("checkpointLocation", str(directory / "checkpoint-parquet"))
    )


def words(spark: Any, address: str, group: str, **options: str) -> Any:
    """For each line where it is and how many words it has, as ``client.demo.counting`` reads it; keyed by its file."""
    count = r"size(filter(split(string(value), '\\s+'), word -> word <> ''))"
    return _lines(spark, address, group, options).selectExpr(
        "key", rf"concat_ws(' ', partition, offset, {count}) AS value"
    )


def to_words(table: Any, address: str, group: str, directory: Path) -> Any:
    """A writer of these to a topic, exactly once, with the offsets of the group. Call ``trigger`` and ``start`` on it."""
    return (
        table.writeStream.format("cohort")
        .option("bootstrap.servers", address)
        .option("topic", WORDS)
        .option("group.id", group)
        .option("checkpointLocation", str(directory / "checkpoint-words"))
    )


def _lines(spark: Any, address: str, group: str, options: dict[str, str]) -> Any:
    """The topic of lines as a stream, from its beginning."""
    return (
        spark.readStream.format("cohort")
        .option("bootstrap.servers", address)
        .option("subscribe", LINES)
        .option("startingOffsets", "earliest")
        .option("group.id", group)
        .options(**options)
        .load()
    )
