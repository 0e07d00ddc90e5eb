"""A ``SparkSession`` on this machine, set up for small pipelines, demonstrations and tests."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from typing import Any

from client.spark.java import prepare_java


def spark_session(name: str = "cohort", master: str = "local[2]", *, settings: Mapping[str, str] | None = None) -> Any:
    """A ``pyspark.sql.SparkSession``; the current one if there is one.

    Finds a Java, or raises ``JavaMissingError``; raises ``ModuleNotFoundError`` without pyspark. The driver listens on the
    loopback, there is no web page, a shuffle has as many partitions as ``local[n]`` has cores, and Python workers are this
    Python. ``settings`` go before all of these.
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
    for key, value in (defaults | dict(settings or {})).items():
        builder = builder.config(key, value)
    return builder.getOrCreate()
