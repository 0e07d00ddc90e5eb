"""Tests of the source and sink: with pyspark, which the extra test brings, and with a Java, without which they fail."""

from __future__ import annotations

import gc
import os
import warnings
from collections.abc import Iterator
from typing import Any

import pytest

# Most of what a short run costs is Java compiling itself: this halves it, in the processes that tests start as well.
os.environ.setdefault("JAVA_TOOL_OPTIONS", "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC")


@pytest.fixture(scope="session")
def spark() -> Iterator[Any]:
    """One session for all tests that need a JVM: it takes ten seconds to start."""
    from client.spark import spark_session

    session = spark_session(
        "cohort-tests",
        settings={"spark.driver.memory": "1g", "spark.sql.python.filterPushdown.enabled": "true"},
    )
    session.sparkContext.setLogLevel("ERROR")
    yield session
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ResourceWarning)  # py4j leaves the closing of its sockets to the collector
        session.stop()
        gc.collect()
