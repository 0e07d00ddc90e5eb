"""The queries of the demonstration on Spark, in a process of their own: ``python -m client.demo.spark_queries``.

Starts Spark, waits for ``go RECORDS`` on standard input and runs the queries. Tells what happens on standard output, one
JSON object a line; the last one is ``done`` with the minutes in Parquet, or ``failed`` with the reason in one line. What
Spark prints goes to standard error. The end of standard input stops the queries, so they do not outlive the demonstration.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import traceback
from collections.abc import Callable
from itertools import count
from pathlib import Path
from queue import Empty, SimpleQueue
from threading import Event, Thread
from time import perf_counter
from typing import Any, Final, TextIO

from client.demo.pipeline import counts, to_parquet, to_topic, to_words, words
from client.spark import failure_reason, spark_session

GROUPS: Final = ("count-to-topic", "count-to-parquet")
GROUP: Final = "words"
"""Of the query that is exactly once."""
BATCHES: Final = 6
"""The query is given about a sixth of the records at a time, so that it can be stopped in the middle."""
SMALLER_BATCHES: Final = 12
"""Of the query whose driver is killed, twice."""

_TIMEOUT_S: Final = 600
_STARTS: Final = 3
_SLOW_START: Final = "Python worker failed to connect back"
"""Spark gives a process in Python 10 s to start, which nothing changes, and fails the query if the machine is too busy."""
_SCHEMA: Final = "minute timestamp, lines bigint, words bigint, errors bigint"


class _InterruptedError(Exception):
    """Standard input was closed."""


class Queries:
    """Runs the queries one after the other. ``events`` is written to, ``interrupted`` is set when they are to stop.

    ``exactly_once`` runs the one that turns each line into a record, of the two that count in windows else.
    """

    def __init__(self, address: str, directory: Path, events: TextIO, *, exactly_once: bool = False) -> None:
        self._exactly_once = exactly_once
        self.interrupted = Event()
        self.records: SimpleQueue[int] = SimpleQueue()
        self._address = address
        self._directory = directory
        self._events = events

    def tell(self, event: str, text: str = "", **details: Any) -> None:
        """One event: ``text`` for people, ``details`` for programs."""
        print(json.dumps({"event": event, "text": text, **details}), file=self._events, flush=True)

    def run(self) -> dict[str, tuple[int, int, int]]:
        """The minutes that are final, if they are counted: lines, words and errors of each, as they are in Parquet."""
        spark = spark_session("cohort-demo")
        try:
            spark.sparkContext.setLogLevel("ERROR")
            self.tell("spark", f"Spark {spark.version} runs on local[2]", version=spark.version)
            return (self._transform if self._exactly_once else self._count)(spark, self._told())
        finally:
            if self.interrupted.is_set():
                spark.sparkContext.setLogLevel("OFF")  # a query that is stopped logs pages of errors
            for query in spark.streams.active:
                query.stop()
            spark.stop()

    def _told(self) -> int:
        """How many records there are, once they are there."""
        while not self.interrupted.is_set():
            try:
                return self.records.get(timeout=0.1)
            except Empty:
                continue
        raise _InterruptedError

    def _count(self, spark: Any, produced: int) -> dict[str, tuple[int, int, int]]:
        limit = {"maxOffsetsPerTrigger": str(max(1, produced // BATCHES))}
        address, directory = self._address, self._directory

        def topic() -> Any:
            return to_topic(counts(spark, address, GROUPS[0], **limit), address, directory)

        def parquet() -> Any:
            return to_parquet(counts(spark, address, GROUPS[1]), directory).trigger(availableNow=True)

        done = self._run(topic, "topic", lambda done: done >= produced // 3)
        self.tell("stopped", f"the query is stopped after {done:,} lines", lines=done)
        for name, writer in ("topic", lambda: topic().trigger(availableNow=True)), ("parquet", parquet):
            rows = self._run(writer, name)
            self.tell("went-on", f"the query to {name} read {rows:,} lines and is done", to=name, lines=rows)
        table = spark.read.schema(_SCHEMA).parquet(str(directory / "parquet"))
        rows = table.selectExpr("string(minute)", "lines", "words", "errors").collect()
        return {row[0][:16]: (row[1], row[2], row[3]) for row in rows}

    def _transform(self, spark: Any, produced: int) -> dict[str, tuple[int, int, int]]:
        limit = {"maxOffsetsPerTrigger": str(max(1, produced // SMALLER_BATCHES))}

        def writer() -> Any:
            table = words(spark, self._address, GROUP, **limit)
            return to_words(table, self._address, GROUP, self._directory).trigger(availableNow=True)

        self._run(writer, "words")
        return {}

    def _run(self, writer: Callable[[], Any], name: str, until: Callable[[int], bool] = lambda done: False) -> int:
        """Runs a query to its end, or stops it when ``until`` says that enough records are done; how many are.

        One whose Python process Spark found too slow to start is started again, as an operator would: nothing is lost.
        """
        for start in count(1):
            query = writer().start()
            try:
                self._follow(query, name, until)
                break
            except Exception as error:
                if _SLOW_START not in str(error) or start == _STARTS:
                    raise
                self.tell("restart", f"the query to {name} is started again: this machine is busy", to=name)
        query.stop()
        return sum(progress["numInputRows"] for progress in query.recentProgress)

    def _follow(self, query: Any, name: str, until: Callable[[int], bool]) -> None:
        """Tells of each batch until the query has ended, or ``until`` says that enough records are done."""
        told: set[int] = set()
        moved_s = perf_counter()
        done, ended = 0, False
        while not ended and not until(done):
            ended = query.awaitTermination(0.05)  # raises what the query failed with
            for progress in query.recentProgress:
                batch, rows = progress["batchId"], progress["numInputRows"]
                if rows and batch not in told:
                    told.add(batch)
                    done, moved_s = done + rows, perf_counter()
                    self.tell("batch", f"batch {batch} to {name}: {rows:,} lines", to=name, batch=batch, lines=rows)
            if self.interrupted.is_set():
                raise _InterruptedError
            if perf_counter() - moved_s > _TIMEOUT_S:
                raise TimeoutError(f"the query to {name} completed no batch within {_TIMEOUT_S} s")


def main() -> int:
    """Entry point of the process."""
    parser = argparse.ArgumentParser(prog="python -m client.demo.spark_queries", description=__doc__)
    parser.add_argument("--bootstrap", required=True)
    parser.add_argument("--directory", type=Path, required=True)
    parser.add_argument("--exactly-once", action="store_true")
    options = parser.parse_args()
    events = os.fdopen(os.dup(sys.stdout.fileno()), "w", encoding="utf-8")
    os.dup2(sys.stderr.fileno(), sys.stdout.fileno())  # Java inherits it: what it prints is not an event
    queries = Queries(options.bootstrap, options.directory, events, exactly_once=options.exactly_once)
    Thread(target=_obey, args=(queries,), daemon=True).start()
    try:
        minutes = queries.run()
    except _InterruptedError:
        return 1
    except Exception as error:  # the demonstration says why, in one line; the rest is for the log
        traceback.print_exc()
        queries.tell("failed", failure_reason(error))
        return 1
    queries.tell("done", minutes=minutes)
    return 0


def _obey(queries: Queries) -> None:
    for line in sys.stdin:
        match line.split():
            case ["go", records]:
                queries.records.put(int(records))
    queries.interrupted.set()


if __name__ == "__main__":
    sys.exit(main())
