"""A driver program that takes orders: ``python -m tests.integration.spark.obedient MASTER``, one JSON object a line.

``{"start": NAME, ...}`` begins a query, see ``Order``; ``{"stop": NAME}`` stops it. It answers with lines of JSON on
standard output: ``{"ready": APPLICATION, "jvm": PID}`` when its session is there, ``{"failed": NAME, "error": REASON}`` for
a query that is tried again, and ``{"ended": NAME, "error": REASON or null}`` for one that is not.
"""

from __future__ import annotations

import json
import os
import queue
import sys
import threading
from dataclasses import asdict, dataclass, field, replace
from time import sleep
from typing import Any, Final

from client.spark import failure_reason, spark_session
from tests.integration.spark.points import wait
from tests.integration.spark.standalone import python_settings
from tests.integration.spark.troubled import TroubledDataSource

SETTINGS: Final = {
    "spark.driver.memory": "700m",
    "spark.executor.memory": "512m",
    "spark.executor.cores": "1",
    "spark.cores.max": "2",
    "spark.locality.wait": "0",
    "spark.speculation": "true",
    "spark.speculation.interval": "50ms",
    "spark.speculation.quantile": "0.5",
    "spark.speculation.multiplier": "1.5",
    "spark.speculation.minTaskRuntime": "700ms",
    "spark.task.maxFailures": "6",
    # The checkpoint files that Spark prefers are made by a process each.
    "spark.sql.streaming.checkpointFileManagerClass": (
        "org.apache.spark.sql.execution.streaming.checkpointing.FileSystemBasedCheckpointFileManager"
    ),
}


EXECUTORS: Final = 2
_PAUSE_S: Final = 0.2
"""Before a query that failed is started anew."""


@dataclass(frozen=True)
class Order:
    """One query: it selects ``columns`` of what ``source`` reads, and ``sink`` writes them.

    ``tries`` is how often it is started anew in this driver when it fails; ``once``: it ends when all is read.
    """

    start: str
    checkpoint: str
    source: dict[str, str]
    sink: dict[str, str]
    columns: list[str] = field(default_factory=lambda: ["key", "value"])
    once: bool = True
    tries: int = 0

    def line(self) -> str:
        """As the driver reads it."""
        return json.dumps(asdict(self))


class Driver:
    """The session. Queries are started by one thread, the session's, and each has another that waits for its end."""

    def __init__(self, master: str) -> None:
        self._spark = spark_session("obedient", master, settings=SETTINGS | python_settings())
        self._spark.sparkContext.setLogLevel("ERROR")
        self._spark.dataSource.register(TroubledDataSource)
        self._orders: queue.Queue[Order | str] = queue.Queue()
        self._lock = threading.Lock()

    def obey(self) -> None:
        """Starts a process of Python in each executor, and then what is asked for.

        Both executors are waited for: the copy of a task needs another one. Tasks of a barrier run at once, so one in each.
        """
        context = self._spark.sparkContext
        wait(lambda: _is_complete(context), "the executors")
        context.parallelize(range(EXECUTORS), EXECUTORS).barrier().mapPartitions(_load).count()
        self._tell(ready=context.applicationId, jvm=context._gateway.proc.pid)
        threading.Thread(target=self._read, daemon=True).start()
        queries: dict[str, Any] = {}
        while True:
            order = self._orders.get()
            if isinstance(order, str):
                queries[order].stop()
                continue
            try:
                queries[order.start] = self._query(order)
            except Exception as error:
                self._over(order, error)
            else:
                threading.Thread(target=self._await, args=(order, queries[order.start]), daemon=True).start()

    def _read(self) -> None:
        for line in sys.stdin:
            order = json.loads(line)
            self._orders.put(order["stop"] if "stop" in order else Order(**order))
        os._exit(0)  # who gave the orders has gone

    def _await(self, order: Order, query: Any) -> None:
        try:
            query.awaitTermination()
        except Exception as error:
            self._over(order, error)
        else:
            self._tell(ended=order.start, error=None)

    def _over(self, order: Order, error: Exception) -> None:
        if not order.tries:
            self._tell(ended=order.start, error=reason(error))
            return
        self._tell(failed=order.start, error=reason(error))
        sleep(_PAUSE_S)
        self._orders.put(replace(order, tries=order.tries - 1))

    def _tell(self, **said: object) -> None:
        with self._lock:
            print(json.dumps(said), flush=True)

    def _query(self, order: Order) -> Any:
        table = (
            self._spark.readStream.format("cohort-troubled").options(**order.source).load().selectExpr(*order.columns)
        )
        writer = table.writeStream.format("cohort-troubled").queryName(order.start).options(**order.sink)
        writer = writer.option("checkpointLocation", order.checkpoint)
        return (writer.trigger(availableNow=True) if order.once else writer.trigger(processingTime="0 seconds")).start()


def _is_complete(context: Any) -> bool:
    """Whether all executors are there. The driver is listed with them."""
    return len(context._jsc.sc().statusTracker().getExecutorInfos()) > EXECUTORS


def _load(rows: Any) -> Any:
    """Has a process of Python load what its tasks need."""
    import tests.integration.spark.troubled  # noqa: F401

    return rows


def reason(failure: Exception) -> str:
    """What a query failed of; more of what Java says when that is all there is."""
    said = failure_reason(failure)
    return " ".join(str(failure).splitlines()[:2]) if said.startswith("An error occurred while calling") else said


if __name__ == "__main__":
    Driver(sys.argv[1]).obey()
