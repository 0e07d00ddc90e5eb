"""A ``SparkSession`` on this machine, set up for small pipelines, demonstrations and tests."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from typing import Any, Final
from weakref import WeakSet

from client.spark.java import prepare_java

_CHECKPOINT_FILES: Final = "org.apache.spark.sql.execution.streaming.checkpointing.FileSystemBasedCheckpointFileManager"
_LISTENING: Final[WeakSet[Any]] = WeakSet()


def spark_session(name: str = "cohort", master: str = "local[2]", *, settings: Mapping[str, str] | None = None) -> Any:
    """A ``pyspark.sql.SparkSession``; the current one if there is one.

    Finds a Java, or raises ``JavaMissingError``; raises ``ModuleNotFoundError`` without pyspark. The driver listens on the
    loopback, there is no web page, a shuffle has as many partitions as ``local[n]`` has cores, and Python workers are this
    Python. With a ``local`` master, checkpoints are written through Hadoop's ``FileSystem``: the ``FileContext`` that Spark
    prefers starts a process for each file, which costs a micro-batch 100 ms. Offsets are committed as batches complete, see
    ``commit_as_batches_complete``. ``settings`` go before all of these.
    """
    try:
        from pyspark.sql import SparkSession
    except ModuleNotFoundError as error:
        raise ModuleNotFoundError("Spark is not installed: pip install 'cohort[spark]'", name="pyspark") from error
    prepare_java()
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    cores = master.removeprefix("local[").removesuffix("]")
    builder = SparkSession.builder.master(master).appName(name)
    defaults = {
        "spark.driver.host": "127.0.0.1",
        "spark.driver.bindAddress": "127.0.0.1",
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
        "spark.sql.shuffle.partitions": cores if cores.isdigit() else "2",
        "spark.sql.execution.pyspark.udf.faulthandler.enabled": "true",
        "spark.sql.session.timeZone": "UTC",
    }
    if master.startswith("local"):
        defaults["spark.sql.streaming.checkpointFileManagerClass"] = _CHECKPOINT_FILES
    for key, value in (defaults | dict(settings or {})).items():
        builder = builder.config(key, value)
    session = builder.getOrCreate()
    commit_as_batches_complete(session)
    return session


def commit_as_batches_complete(spark: Any) -> None:
    """Has the offsets of every query of this session that has a ``group.id`` committed as soon as a batch is complete.

    Without it the source commits when Spark plans the batch after, which with ``trigger(processingTime="1 minute")`` is a
    minute later; and when a query ends, its group is free when ``session.timeout.ms`` are over at the latest, since Spark
    may kill the process of the source without a word. With it that is at once. Call it once a ``SparkSession``, before or
    after queries have started; calling it again does nothing. It is this program that commits, so it must reach the daemons.
    """
    from client.spark.listener import GroupCommits

    if spark not in _LISTENING:
        _LISTENING.add(spark)
        spark.streams.addListener(GroupCommits())
