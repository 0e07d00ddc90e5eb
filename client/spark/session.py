"""A ``SparkSession`` on this machine, set up for small pipelines, demonstrations and tests."""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Callable, Mapping, MutableMapping
from importlib import metadata, util
from pathlib import Path
from typing import Any, Final
from weakref import WeakSet

from client.spark.java import prepare_java
from client.spark.monitor import QueryMonitor, QuerySnapshot

_CHECKPOINT_FILES: Final = "org.apache.spark.sql.execution.streaming.checkpointing.FileSystemBasedCheckpointFileManager"
_LISTENING: Final[WeakSet[Any]] = WeakSet()
_PACKAGES: Final = ("pyspark", "pyarrow", "numpy")
_OLDEST: Final = (4, 2)
"""The first PySpark whose readers in Python may limit a micro-batch, and that has ``AvailableNow`` for them."""
_ADVICE: Final = "pip install 'aiocohort[spark]'"


def require_spark() -> str:
    """Checks that Spark can run in this environment, within a second and without starting it; returns its ``java``.

    Raises ``ModuleNotFoundError`` without pyspark, pyarrow or numpy, ``ImportError`` for a PySpark before 4.2, and
    ``JavaMissingError`` as ``prepare_java`` does.
    """
    missing = [name for name in _PACKAGES if util.find_spec(name) is None]
    if missing:
        names = " and ".join(missing)
        verb = "is" if len(missing) == 1 else "are"
        raise ModuleNotFoundError(f"Spark cannot run: {names} {verb} not installed: {_ADVICE}", name=missing[0])
    try:
        version = metadata.version("pyspark")
    except metadata.PackageNotFoundError:  # not installed by pip, but on the path, as in a distribution of Spark
        return prepare_java()
    found = re.match(r"(\d+)\.(\d+)", version)
    if found is not None and (int(found[1]), int(found[2])) < _OLDEST:
        raise ImportError(f"PySpark {version} is too old, 4.2 is needed: {_ADVICE}", name="pyspark")
    return prepare_java()


def spark_session(name: str = "cohort", master: str = "local[2]", *, settings: Mapping[str, str] | None = None) -> Any:
    """A ``pyspark.sql.SparkSession``; the current one if there is one.

    Raises what ``require_spark`` raises, before anything is started. The driver listens on the loopback, there is no web
    page, a shuffle has as many partitions as ``local[n]`` has cores, and Python workers are this Python. With a ``local``
    master, checkpoints are written through Hadoop's ``FileSystem``: the ``FileContext`` that Spark prefers starts a process
    for each file, which costs a micro-batch 100 ms. Offsets are committed as batches complete, see
    ``commit_as_batches_complete``. ``settings`` go before all of these.
    """
    require_spark()
    from pyspark.sql import SparkSession

    if "PYSPARK_PYTHON" not in os.environ:
        os.environ["PYSPARK_PYTHON"] = _worker_python(os.environ) if master.startswith("local[") else sys.executable
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


def _worker_python(environment: MutableMapping[str, str]) -> str:
    """What Spark is to start its workers with: this Python, by way of a script that has them load PySpark with bytecode.

    This Python alone where PySpark is not a package installed in it, but comes from a distribution of Spark.
    """
    script = Path(__file__).with_name("worker-python")
    specs = [util.find_spec(name) for name in ("pyspark", "py4j")]
    installed = all(spec is not None and spec.origin is not None and Path(spec.origin).is_file() for spec in specs)
    if "SPARK_HOME" in environment or not installed or not os.access(script, os.X_OK):
        return sys.executable
    environment["PYSPARK_COHORT_PYTHON"] = sys.executable
    return str(script)


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


def monitor_queries(spark: Any, report: Callable[[QuerySnapshot], object] | None = None) -> QueryMonitor:
    """Follows all streaming queries of this session from here on; returns where their last snapshots can be asked for.

    Each trigger is logged as ``query_progress`` at level info, a query that fails as ``query_failed`` with the reason, and
    ``report`` is called with each snapshot, on a thread that is not the program's: it must return soon.
    """
    from client.spark.listener import QueryEvents

    monitor = QueryMonitor(report)
    spark.streams.addListener(QueryEvents(monitor))
    return monitor
