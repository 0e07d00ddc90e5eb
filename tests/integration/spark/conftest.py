"""Tests of the source and sink are there when pyspark and pyarrow are: pip install -e '.[test,spark]'."""

from __future__ import annotations

import gc
import warnings
from collections.abc import Iterator
from importlib.util import find_spec
from typing import Any

import pytest

collect_ignore_glob = [] if find_spec("pyarrow") and find_spec("pyspark") else ["test_*.py"]


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
