"""A driver program of its own: copies a topic to others by streaming queries whose tasks, or which itself, come to grief.

``python -m tests.integration.spark.program ADDRESS DIRECTORY MASTER TROUBLE...``, one query for each TROUBLE,
at least once. What becomes of a driver: a moment of ``violent.MOMENTS``, or ``none``. What becomes of a task, on a
cluster: ``fail``, ``kill`` or ``dawdle``, see ``slowly``. Standard output has the TROUBLE when its query is done.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

from client.spark import spark_session
from tests.integration.spark.standalone import python_settings
from tests.integration.spark.violent import ViolentDataSource

BATCH = 400
SETTINGS = {
    "spark.driver.memory": "700m",
    "spark.executor.memory": "700m",
    "spark.speculation": "true",
    "spark.speculation.interval": "100ms",
    "spark.speculation.quantile": "0.5",
    "spark.speculation.minTaskRuntime": "500ms",
    "spark.task.maxFailures": "4",
}


def slowly(trouble: Path, batches: Iterator[Any]) -> Iterator[Any]:
    """A step in which the first attempt at the first part comes to grief, as long as there is a file named for it."""
    from time import sleep

    from pyspark import TaskContext

    from tests.integration.spark.points import tell

    context = TaskContext.get()
    assert context is not None
    hurt = context.attemptNumber() == 0 and context.partitionId() == 0 and trouble.exists()
    yield from batches
    if hurt and trouble.name == "fail":
        raise RuntimeError("a task fails after it has handed on its rows")
    if hurt:
        tell(trouble.with_suffix(".pid"), str(os.getppid()))
        sleep(240)


def main(address: str, directory: Path, master: str, *troubles: str) -> None:
    spark = spark_session("copying", master, settings=SETTINGS | python_settings())
    spark.sparkContext.setLogLevel("ERROR")
    spark.dataSource.register(ViolentDataSource)
    for trouble in troubles:
        group = "copying" if len(troubles) == 1 else trouble
        table = (
            spark.readStream.format("cohort-violent")
            .options(**{"bootstrap.servers": address, "subscribe": "t", "startingOffsets": "earliest"})
            .options(**{"group.id": group, "maxOffsetsPerTrigger": str(BATCH), "moment": trouble})
            .load()
            .select("key", "value")
        )
        if master.startswith("spark://"):
            (directory / trouble).touch()
            table = table.mapInArrow(partial(slowly, directory / trouble), table.schema)
        query = (
            table.writeStream.format("cohort-violent")
            .options(**{"bootstrap.servers": address, "topic": f"{group}-out", "moment": trouble})
            .option("delivery", "at-least-once")
            .option("checkpointLocation", str(directory / f"{group}-checkpoint"))
            .trigger(availableNow=True)
            .start()
        )
        query.awaitTermination()
        print(trouble, flush=True)
    spark.stop()


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]), *sys.argv[3:])
