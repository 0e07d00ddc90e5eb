"""A driver program of its own: copies a topic to another by a streaming query, and may be told to end itself violently.

``python -m tests.integration.spark.program ADDRESS DIRECTORY MASTER MOMENT``. MOMENT is where it kills itself: ``before`` a
batch is planned, ``in`` one (Spark's log has the batch, not its end), ``after`` some batches; ``never``. Standard output
has one line a batch and ``done`` at the end.
"""

from __future__ import annotations

import os
import signal
import sys
from pathlib import Path
from typing import Any

from client.spark import spark_session

SETTINGS = {
    "spark.driver.memory": "700m",
    "spark.executor.memory": "700m",
    "spark.speculation": "true",
    "spark.speculation.interval": "100ms",
    "spark.speculation.quantile": "0.5",
    "spark.speculation.minTaskRuntime": "500ms",
    "spark.task.maxFailures": "4",
}


def slowly(batches: Any) -> Any:
    """A step that may fail or dawdle, as a file in the checkpoint's directory says: it is read in the worker."""
    from time import sleep

    from pyspark import TaskContext

    context = TaskContext.get()
    assert context is not None
    trouble = Path(os.environ.get("TROUBLE", "/nonexistent"))
    first = context.attemptNumber() == 0 and context.partitionId() == 0
    mode = trouble.read_text() if first and trouble.exists() else ""
    yield from batches
    if mode == "fail":
        raise RuntimeError("a task fails after it has handed on its rows")
    if mode in ("dawdle", "kill"):
        (trouble.parent / "pid").write_text(str(os.getppid()))
        sleep(240)


def main(address: str, directory: Path, master: str, moment: str) -> None:
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    trouble = {"spark.executorEnv.TROUBLE": str(directory / "trouble"), "spark.executorEnv.PYTHONPATH": os.getcwd()}
    spark = spark_session("copying", master, settings=SETTINGS | trouble)
    spark.sparkContext.setLogLevel("ERROR")
    table = (
        spark.readStream.format("cohort")
        .options(
            **{"bootstrap.servers": address, "subscribe": "t", "startingOffsets": "earliest", "group.id": "copying"}
        )
        .option("maxOffsetsPerTrigger", "400")
        .load()
        .select("key", "value")
    )
    if master.startswith("spark://"):
        table = table.mapInArrow(slowly, table.schema)
    query = (
        table.writeStream.format("cohort")
        .options(**{"bootstrap.servers": address, "topic": "out", "checkpointLocation": str(directory / "checkpoint")})
        .trigger(availableNow=True)
        .start()
    )
    seen = -1
    while not query.awaitTermination(0.02):
        latest = query.lastProgress
        if latest is not None and latest["batchId"] > seen:
            seen = latest["batchId"]
            print(f"batch {seen}", flush=True)
        if _comes(moment, directory / "checkpoint"):
            os.kill(spark._jvm.java.lang.ProcessHandle.current().pid(), signal.SIGKILL)
            os.kill(os.getpid(), signal.SIGKILL)
    print("done", flush=True)
    spark.stop()


def _comes(moment: str, checkpoint: Path) -> bool:
    planned = {path.name for path in (checkpoint / "offsets").glob("[0-9]*")}
    complete = {path.name for path in (checkpoint / "commits").glob("[0-9]*")}
    return {
        "before": checkpoint.exists() and not planned,
        "in": bool(planned - complete) and bool(complete),
        "after": len(complete) >= 3 and not planned - complete,
        "never": False,
    }[moment]


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]), sys.argv[3], sys.argv[4])
