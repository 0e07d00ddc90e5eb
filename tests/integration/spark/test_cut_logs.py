"""A query of Spark itself whose log is cut by an unclean election, and grows again, while the query does not run."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

from coordinator.cluster import Cluster
from tests.integration.spark.calls import IN_THE_SESSION
from tests.integration.test_spark_plans_of_cut_logs import CutAndGrown

pytestmark = IN_THE_SESSION


def reading(spark: Any, log: CutAndGrown, directory: Path, fail: str) -> str:
    """Runs the query over all that is there; what it failed with."""
    from pyspark.errors import StreamingQueryException

    source = spark.readStream.format("cohort").option("subscribe", "t").option("startingOffsets", "earliest")
    for name, value in {"bootstrap.servers": ",".join(log.cluster.addresses), "failOnDataLoss": fail}.items():
        source = source.option(name, value)
    written = source.load().selectExpr("cast(value as string) as value").writeStream.format("json")
    written = written.option("checkpointLocation", str(directory / "checkpoint"))
    query = written.trigger(availableNow=True).start(str(directory / "values"))
    try:
        assert query.awaitTermination(120)
    except StreamingQueryException as error:
        return str(error)
    return ""


def values(spark: Any, directory: Path) -> list[str]:
    return sorted(row.value for row in spark.read.json(str(directory / "values")).collect())


async def test_a_query_that_goes_on_from_its_checkpoint_is_told_that_other_records_are_there(
    spark: Any, tmp_path: Path
) -> None:
    async with Cluster(nodes=3, log_level="error") as cluster, asyncio.timeout(400):
        log = CutAndGrown(cluster)
        await log.begin(b"a", b"b")
        await log.alone(b"lost", b"lost")
        assert await asyncio.to_thread(reading, spark, log, tmp_path, "true") == ""
        assert await asyncio.to_thread(values, spark, tmp_path) == ["a", "b", "lost", "lost"]
        await log.lose_what_one_had(b"c", b"d", b"e")
        failure = await asyncio.to_thread(reading, spark, log, tmp_path, "true")
        assert "t-0 was read from offset 2 to 3, and a new leader has other records there or none" in failure
        assert await asyncio.to_thread(values, spark, tmp_path) == ["a", "b", "lost", "lost"]
        assert await asyncio.to_thread(reading, spark, log, tmp_path, "false") == ""
        assert await asyncio.to_thread(values, spark, tmp_path) == ["a", "b", "e", "lost", "lost"]
