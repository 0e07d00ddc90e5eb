"""``python -m tests.integration.spark.archive FILE``: an archive of the classes that Spark loads, for the JVMs of tests.

Half of what a JVM of Spark costs that runs a query or two is to read, check and link some 20,000 classes, and the tests
start dozens of them. With ``COHORT_TEST_SPARK_CLASSES=FILE`` in the environment they map them from there instead. Java takes
an archive only for the class path that it was made with, and goes on without where there is none, or another one's.
"""

from __future__ import annotations

import os
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Final

ARCHIVE: Final = "COHORT_TEST_SPARK_CLASSES"
_OPTIONS: Final = "JAVA_TOOL_OPTIONS"
_QUICK: Final = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"
"""Most of what else a short run costs is Java compiling itself: this halves it."""
_SILENT: Final = "-Xlog:cds=off -Xlog:cds+dynamic=off"
"""Spark starts each JVM by another one, whose class path is another one, and which would say so."""
_END_S: Final = 300.0


def java_options(environment: Mapping[str, str]) -> str:
    """For every JVM of the tests of Spark."""
    archive = environment.get(ARCHIVE)
    return f"{_QUICK} -XX:SharedArchiveFile={archive} {_SILENT}" if archive else _QUICK


def main(archive: Path) -> None:
    """Runs a query of each kind, a stream of Cohort's among them, and keeps the classes that their JVM has loaded."""
    made = archive.with_suffix(".made")
    os.environ[_OPTIONS] = f"{_QUICK} -XX:ArchiveClassesAtExit={made} {_SILENT}"
    from client.spark import spark_session
    from client.spark.source import CohortDataSource
    from tests.daemon_process import DaemonProcess
    from tests.integration.spark.calls import prepare

    with tempfile.TemporaryDirectory() as name, DaemonProcess(Path(name, "data"), "--flush", "os") as daemon:
        prepare(daemon.address, {"in": 2, "out": 2}, {"in": 100})
        spark = spark_session("classes")
        spark.sparkContext.setLogLevel("OFF")
        spark.dataSource.register(CohortDataSource)
        spark.range(100).selectExpr("id", "id % 3 AS k").groupBy("k").count().collect()
        table = spark.readStream.format("cohort").option("subscribe", "in").option("startingOffsets", "earliest")
        table = table.option("bootstrap.servers", daemon.address).load().selectExpr("key", "value", "timestamp")
        sink = table.withWatermark("timestamp", "1 minute").select("key", "value").writeStream.format("cohort")
        sink = sink.option("bootstrap.servers", daemon.address).option("topic", "out")
        query = sink.option("checkpointLocation", f"{name}/checkpoint").trigger(availableNow=True).start()
        query.awaitTermination()
        java = spark.sparkContext._gateway.proc
        spark.stop()
        java.stdin.close()  # upon which it ends
        java.wait(_END_S)
    made.rename(archive)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
