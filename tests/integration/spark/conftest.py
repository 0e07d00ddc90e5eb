"""Tests of the source and sink: with pyspark, which the extra test brings, and with a Java, without which they fail."""

from __future__ import annotations

import gc
import os
import warnings
from collections.abc import Iterator
from typing import Any, Final

import pytest

from tests.integration.spark.archive import java_options

os.environ.setdefault("JAVA_TOOL_OPTIONS", java_options(os.environ))  # of the processes that tests start as well

_TOLD_MS: Final = 300_000


@pytest.fixture
def spark(session: Any) -> Iterator[Any]:
    """The session, in which this test finds no query and no listener of another one, and leaves none.

    Spark tells its listeners on a thread of its own, one thing after the other, and on a busy machine much later. So a test
    that listens waits for what its own query does, and at its end all that was to be told has been told. A test names its
    daemon before this: the queries end while it is there.
    """
    manager = session.streams._jsqm
    listeners = list(manager.listListeners())
    yield session
    for query in session.streams.active:
        query.stop()
    session.sparkContext._jsc.sc().listenerBus().waitUntilEmpty(_TOLD_MS)
    for listener in manager.listListeners():
        if listener not in listeners:
            manager.removeListener(listener)


@pytest.fixture(scope="package")
def session() -> Iterator[Any]:
    """One session for all tests that need a JVM: it takes ten seconds to start.

    What comes after them in this process finds neither the JVM nor a socket of py4j, which leaves their closing to the
    collector: an unclosed one is an error in a test that happens to collect it.
    """
    from pyspark import SparkContext

    from client.spark import spark_session

    started = spark_session(
        "cohort-tests",
        settings={"spark.driver.memory": "1g", "spark.sql.python.filterPushdown.enabled": "true"},
    )
    started.sparkContext.setLogLevel("ERROR")
    yield started
    gateway = started.sparkContext._gateway
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ResourceWarning)
        started.stop()
        gateway.shutdown()
        gateway.proc.stdin.close()  # upon which the JVM ends
        gateway.proc.wait(60)
        SparkContext._gateway = SparkContext._jvm = None
        gc.collect()
