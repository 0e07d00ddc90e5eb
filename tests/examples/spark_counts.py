"""Counts lines, words and errors by minute of event time, into a topic and into Parquet files; as docs/spark.md shows it."""

import asyncio

from aiocohort import Admin
from aiocohort.spark import spark_session
from pyspark.sql import DataFrame

ADDRESS = "127.0.0.1:7337"


async def create_missing(topics: dict[str, int]) -> None:
    """Topics with so many partitions each, as far as they are not there: neither source nor sink creates any."""
    async with Admin(ADDRESS) as admin:
        there = await admin.list_topics()
        await admin.create_topics({name: count for name, count in topics.items() if name not in there})


asyncio.run(create_missing({"lines": 4, "counts": 1}))
spark = spark_session("counts")  # on a cluster: your own SparkSession; the format registers itself
lines = (
    spark.readStream.format("cohort")
    .option("bootstrap.servers", ADDRESS)
    .option("subscribe", "lines")
    .option("startingOffsets", "earliest")
    .load()
    .selectExpr("timestamp", "string(value) AS line")
    .withWatermark("timestamp", "30 seconds")
)
lines.createOrReplaceTempView("lines")
counts = spark.sql(r"""
    SELECT window.start AS minute, count(*) AS lines,
           sum(size(filter(split(line, '\\s+'), word -> word <> ''))) AS words,
           count_if(lower(line) LIKE '%error%') AS errors
    FROM lines GROUP BY window(timestamp, '1 minute')""")


def keep(changed: DataFrame, batch_id: int) -> None:
    """Minutes again whenever they have changed: the last one of a key counts."""
    rows = changed.selectExpr("string(minute) AS key", "to_json(struct(*)) AS value")
    rows.write.format("cohort").mode("append").option("bootstrap.servers", ADDRESS).option("topic", "counts").save()


to_topic = counts.writeStream.foreachBatch(keep).outputMode("update")
to_parquet = counts.writeStream.format("parquet").option("path", "counts.parquet")  # minutes that are final
for name, writer in (("topic", to_topic), ("parquet", to_parquet)):
    query = writer.option("checkpointLocation", f"checkpoints/{name}").trigger(availableNow=True).start()
    query.awaitTermination()
    print(name, sum(progress["numInputRows"] for progress in query.recentProgress), "new lines")
spark.stop()
