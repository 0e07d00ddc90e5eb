"""Counts the lines, words and errors of each minute in topic ``lines``: into topic ``counts``, and into Parquet files.

Run it as often as you like, also after it was killed: it goes on where its checkpoint is.
"""

import sys

from client.spark import spark_session

COUNTS = r"""
SELECT window.start AS minute,
       count(line) AS lines,
       sum(regexp_count(line, '\\S+')) AS words,
       count_if(contains(lower(line), 'error')) AS errors
FROM {lines}
GROUP BY window(timestamp, '1 minute')
"""


def main(address: str, directory: str, rows_a_batch: str = "100000") -> None:
    """Counts what is there, and prints what the files hold then; ``directory`` is for them and the checkpoints."""
    spark = spark_session("counts")

    def counts(group: str):  # type: ignore[no-untyped-def]
        lines = (
            spark.readStream.format("cohort")
            .option("bootstrap.servers", address)
            .option("subscribe", "lines")
            .option("startingOffsets", "earliest")  # the first time; then the checkpoint says where to go on
            .option("maxOffsetsPerTrigger", rows_a_batch)
            .option("group.id", group)  # cohort groups describe shows the query and its lag
            .load()
            .selectExpr("timestamp", "cast(value AS string) AS line")
            .withWatermark("timestamp", "1 minute")  # lines may come a minute late
        )
        return spark.sql(COUNTS, lines=lines)

    to_topic = (
        counts("counts-to-topic")
        .selectExpr("cast(minute AS string) AS key", "to_json(struct(*)) AS value")
        .writeStream.format("cohort")
        .option("bootstrap.servers", address)
        .option("topic", "counts")
        .option("checkpointLocation", f"{directory}/checkpoint-topic")
        .outputMode("update")  # each minute again whenever it changes: the last one counts
        .trigger(availableNow=True)  # without it, the query goes on for ever
        .start()
    )
    to_files = (
        counts("counts-to-files")
        .writeStream.format("parquet")
        .option("path", f"{directory}/counts")
        .option("checkpointLocation", f"{directory}/checkpoint-files")
        .outputMode("append")  # each minute once, when no line of it may come any more
        .trigger(availableNow=True)
        .start()
    )
    for query in (to_topic, to_files):
        query.awaitTermination()
    for minute in spark.read.parquet(f"{directory}/counts").orderBy("minute").collect():
        print(minute.minute.isoformat(), minute.lines, minute.words, minute.errors)
    spark.stop()


if __name__ == "__main__":
    main(*sys.argv[1:])
