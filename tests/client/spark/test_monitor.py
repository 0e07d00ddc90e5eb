"""Snapshots of queries, from what Spark tells of them."""

from __future__ import annotations

import json
from typing import Any

import pytest
from pyspark.sql.streaming.listener import StreamingQueryProgress

from client import TopicPartition
from client.spark.monitor import QueryMonitor, QuerySnapshot
from client.spark.owner import Owner
from client.spark.positions import Positions

QUERY, RUN = "32cf1e84-742e-44fe-83b2-be22afefe36d", "81da23d5-ed85-4069-9a99-b6f569ab172a"


def offsets(*numbers: int, topic: str = "in") -> dict[str, Any]:
    at = {TopicPartition(topic, index): number for index, number in enumerate(numbers)}
    return Positions(at, {topic: "id"}, "cluster").to_json()


def source(end: Any, latest: Any, rows: int = 30) -> dict[str, Any]:
    return {
        "description": "PythonMicroBatchStream",
        "startOffset": None,
        "endOffset": end,
        "latestOffset": latest,
        "numInputRows": rows,
        "inputRowsPerSecond": 0.0,
        "processedRowsPerSecond": 0.0,
    }


def progress(batch: int, *sources: dict[str, Any], executed: bool = True, **others: Any) -> Any:
    told = {
        "id": QUERY,
        "runId": RUN,
        "name": "copy",
        "timestamp": "2026-11-22T20:16:05.330Z",
        "batchId": batch,
        "batchDuration": 263,
        "numInputRows": sum(one["numInputRows"] for one in sources),
        "inputRowsPerSecond": 0.0,
        "processedRowsPerSecond": 1133.1,
        "durationMs": {"triggerExecution": 260} | ({"addBatch": 212} if executed else {"latestOffset": 14}),
        "eventTime": {},
        "stateOperators": [],
        "sources": list(sources),
        "sink": {"description": "PythonTable", "numOutputRows": 29 if executed else -1},
    }
    return StreamingQueryProgress.fromJson(json.loads(json.dumps(told | others)))


def last(monitor: QueryMonitor) -> QuerySnapshot:
    return monitor.snapshots()[QUERY]


def test_a_snapshot_has_rows_lag_and_the_batch_that_is_committed() -> None:
    told: list[QuerySnapshot] = []
    monitor = QueryMonitor(told.append)
    monitor.query_started(QUERY, RUN, "copy", "2026-11-22T20:16:00.000Z")
    assert (last(monitor).committed_batch, last(monitor).lag, last(monitor).active) == (-1, {}, True)
    ends = Owner("g", 1, "m", "127.0.0.1:7337", "spark", 30_000).reported(offsets(100, 60))
    monitor.query_progressed(progress(0, source(offsets(20, 10), ends)))
    now = last(monitor)
    assert now.lag == {TopicPartition("in", 0): 80, TopicPartition("in", 1): 50}
    assert (now.total_lag, now.committed_batch, now.rows_in, now.rows_out, now.duration_ms) == (130, 0, 30, 29, 260)
    assert now.sources[0].offsets == {TopicPartition("in", 0): 20, TopicPartition("in", 1): 10}
    assert (now.sources[0].group_id, now.sources[0].rows_in, now.started) == ("g", 30, "2026-11-22T20:16:00.000Z")
    monitor.query_progressed(progress(1, source(offsets(100, 60), ends, 130)))
    assert (last(monitor).total_lag, last(monitor).total_rows_in, last(monitor).total_rows_out) == (0, 160, 58)
    monitor.query_ended(QUERY, RUN, None)
    assert (last(monitor).active, last(monitor).failure, last(monitor).batches) == (False, None, 2)
    assert told[-1] == last(monitor)
    assert len(told) == 4


def test_a_trigger_that_found_nothing_to_do_is_no_batch() -> None:
    monitor = QueryMonitor()
    at = offsets(100, 60)
    monitor.query_progressed(progress(4, source(at, at, 0), executed=False))
    now = last(monitor)
    assert (now.committed_batch, now.batches, now.rows_in, now.rows_out, now.total_lag) == (3, 0, 0, 0, 0)


def test_the_log_has_the_partitions_that_are_furthest_behind(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO", "cohort.client")
    monitor = QueryMonitor()
    monitor.query_progressed(progress(0, source(offsets(*[0] * 100), offsets(*range(100)))))
    assert "lag=4950 furthest_behind={'in-99': 99, 'in-98': 98," in caplog.text
    assert caplog.text.count("'in-") == 10


def test_a_sink_that_does_not_count_has_no_rows_out() -> None:
    monitor = QueryMonitor()
    sink = {"description": "ForeachBatchSink", "numOutputRows": -1}
    monitor.query_progressed(progress(0, source(offsets(5), offsets(5)), sink=sink))
    assert (last(monitor).rows_out, last(monitor).total_rows_out) == (None, 0)


@pytest.mark.parametrize("foreign", [None, 17, {"t": {"0": 1}}])
def test_sources_of_others_count_as_rows_and_have_no_lag(foreign: Any) -> None:
    monitor = QueryMonitor()
    monitor.query_progressed(progress(0, source(foreign, foreign), source(offsets(5), offsets(7))))
    assert (last(monitor).rows_in, len(last(monitor).sources), last(monitor).total_lag) == (60, 1, 2)


def test_lag_is_not_known_where_the_ends_are_not() -> None:
    monitor = QueryMonitor()
    monitor.query_progressed(progress(7, source(offsets(5), None)))
    assert (last(monitor).lag, last(monitor).sources[0].offsets) == ({}, {TopicPartition("in", 0): 5})
    created_again = Positions({TopicPartition("in", 0): 9}, {"in": "another id"}, "cluster").to_json()
    monitor.query_progressed(progress(8, source(offsets(5), created_again)))
    assert last(monitor).lag == {}


def test_two_sources_of_one_topic_have_the_larger_lag() -> None:
    monitor = QueryMonitor()
    ends = offsets(10)
    monitor.query_progressed(progress(0, source(offsets(4), ends), source(offsets(7), ends)))
    assert last(monitor).lag == {TopicPartition("in", 0): 6}


def test_late_rows_and_rows_of_state_are_those_of_all_operators() -> None:
    operator = {
        **dict.fromkeys(("numRowsUpdated", "allUpdatesTimeMs", "numRowsRemoved", "allRemovalsTimeMs"), 0),
        **dict.fromkeys(("commitTimeMs", "memoryUsedBytes", "numShufflePartitions", "numStateStoreInstances"), 0),
        "operatorName": "stateStoreSave",
        "numRowsTotal": 7,
        "numRowsDroppedByWatermark": 2,
        "customMetrics": {},
    }
    monitor = QueryMonitor()
    event_time = {"watermark": "2026-01-01T00:10:00.000Z"}
    monitor.query_progressed(progress(0, stateOperators=[operator, operator], eventTime=event_time))
    now = last(monitor)
    assert (now.state_rows, now.late_rows, now.watermark) == (14, 4, "2026-01-01T00:10:00.000Z")


def test_a_query_that_failed_says_why_in_one_line(caplog: pytest.LogCaptureFixture) -> None:
    monitor = QueryMonitor()
    monitor.query_started(QUERY, RUN, None, "")
    text = (
        "org.apache.spark.SparkException: Job aborted\nclient.spark.errors.DataLossError: t-0 was deleted\n\tat x.y.Z"
    )
    monitor.query_ended(QUERY, RUN, text)
    assert last(monitor).failure == "t-0 was deleted"
    assert f"query_failed query='{QUERY}' committed_batch=-1 reason='t-0 was deleted'" in caplog.text


def test_a_new_run_counts_anew_and_the_end_of_the_one_before_does_not_count_as_its_own() -> None:
    monitor = QueryMonitor()
    monitor.query_progressed(progress(3, source(offsets(5), offsets(5))))
    monitor.query_started(QUERY, "another run", "copy", "later")
    assert (last(monitor).run_id, last(monitor).batches) == ("another run", 0)
    monitor.query_ended(QUERY, RUN, "it was stopped late")
    assert (last(monitor).run_id, last(monitor).active) == ("another run", True)


def test_a_report_that_raises_is_logged_and_ends_nothing(caplog: pytest.LogCaptureFixture) -> None:
    def report(snapshot: QuerySnapshot) -> None:
        raise ValueError("no metrics today")

    monitor = QueryMonitor(report)
    monitor.query_started(QUERY, RUN, "copy", "")
    assert "query_snapshot_not_taken query='copy' error=\"ValueError('no metrics today')\"" in caplog.text
    assert last(monitor).active


def test_queries_that_ended_are_forgotten_when_they_are_too_many_and_others_are_not() -> None:
    monitor = QueryMonitor()
    for number in range(1200):
        monitor.query_started(str(number), RUN, None, "")
        if number >= 100:
            monitor.query_ended(str(number), RUN, None)
    known = monitor.snapshots()
    assert len(known) == 1000
    assert {str(number) for number in (*range(100), *range(300, 1200))} == set(known)
