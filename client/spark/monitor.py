"""What the queries of a session do, as typed values: rows, durations, lag by partition, the last batch that is committed.

Spark gives a source written in Python no metrics of its own, where its Kafka source has ``avgOffsetsBehindLatest`` and its
kin. But a query's progress has where each source stands and where its logs end, and the lag is the difference.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from heapq import nlargest
from threading import Lock
from typing import Any, Final

from client.log import get_logger
from client.spark.errors import failure_reason
from client.spark.owner import Owner
from client.spark.positions import KEY, Positions
from protocol.subscription import TopicPartition

log = get_logger()

_MOST_QUERIES: Final = 1000
"""Queries whose last snapshot is kept: those that ended first are forgotten first."""
_MOST_PARTITIONS_LOGGED: Final = 10


@dataclass(frozen=True, slots=True)
class SourceSnapshot:
    """One source of Cohort in a query, after a batch.

    ``offsets`` is where the query goes on. ``lag`` is how many offsets were behind that when the batch was planned, for each
    partition where this is known: not for a batch that is repeated after a restart. ``group_id`` is the group that the
    source owns, None without one or when it has been given up.
    """

    rows_in: int
    offsets: Mapping[TopicPartition, int]
    lag: Mapping[TopicPartition, int]
    group_id: str | None


@dataclass(frozen=True, slots=True)
class QuerySnapshot:
    """A streaming query after its last batch, or after it ended.

    ``committed_batch`` is the last batch that is complete, -1 before the first; with ``delivery=exactly-once`` it is the
    version that the transaction of that batch committed. ``rows_in``, ``rows_out``, ``durations_ms`` and ``late_rows`` are
    of the last trigger; ``rows_out`` is None for a sink that does not count, such as ``foreachBatch``. ``durations_ms`` has
    the names of Spark's progress. ``late_rows`` came behind the watermark and were dropped; Spark counts them after the rows
    of a task were aggregated. ``state_rows`` are kept for joins and aggregations. ``total_rows_in``, ``total_rows_out`` and
    ``batches`` count from the start of this run.

    ``active`` is False once the query has ended, and ``failure`` says in one line why, None if it was stopped or is done.
    """

    query_id: str
    run_id: str
    name: str | None
    started: str
    timestamp: str = ""
    committed_batch: int = -1
    rows_in: int = 0
    rows_out: int | None = 0
    rows_per_second: float = 0.0
    duration_ms: int = 0
    durations_ms: Mapping[str, int] = field(default_factory=dict)
    watermark: str | None = None
    late_rows: int = 0
    state_rows: int = 0
    sources: tuple[SourceSnapshot, ...] = ()
    batches: int = 0
    total_rows_in: int = 0
    total_rows_out: int = 0
    active: bool = True
    failure: str | None = None

    @property
    def lag(self) -> dict[TopicPartition, int]:
        """The lag by partition; the larger one where two sources read the same partition."""
        found: dict[TopicPartition, int] = {}
        for source in self.sources:
            for partition, behind in source.lag.items():
                found[partition] = max(behind, found.get(partition, 0))
        return found

    @property
    def total_lag(self) -> int:
        """How many offsets are behind, over all partitions."""
        return sum(self.lag.values())


class QueryMonitor:
    """The last snapshot of each query of a session. Safe to ask from any thread.

    ``report`` is called with each snapshot, on the thread on which Spark tells its listeners, so it must return soon. What
    it raises is logged.
    """

    def __init__(self, report: Callable[[QuerySnapshot], object] | None = None) -> None:
        self._report = report
        self._lock = Lock()
        self._latest: dict[str, QuerySnapshot] = {}

    def snapshots(self) -> dict[str, QuerySnapshot]:
        """The last snapshot of each query, by query id, which a query keeps with its checkpoint."""
        with self._lock:
            return dict(self._latest)

    def query_started(self, query_id: str, run_id: str, name: str | None, timestamp: str) -> None:
        """A query has started, or was started again."""
        self._take(QuerySnapshot(query_id, run_id, name, timestamp))
        log.info("query_started", query=name or query_id, query_id=query_id, run_id=run_id)

    def query_progressed(self, progress: Any) -> None:
        """A trigger is over; ``progress`` is a ``StreamingQueryProgress``."""
        before = self.snapshots().get(str(progress.id))
        if before is None or before.run_id != str(progress.runId):
            before = QuerySnapshot(str(progress.id), str(progress.runId), progress.name, progress.timestamp)
        now = after_trigger(before, progress)
        self._take(now)
        log.info(
            "query_progress",
            query=now.name or now.query_id,
            committed_batch=now.committed_batch,
            rows_in=now.rows_in,
            rows_out=now.rows_out,
            duration_ms=now.duration_ms,
            late_rows=now.late_rows,
            lag=now.total_lag,
            furthest_behind=_furthest_behind(now.lag),
        )

    def query_ended(self, query_id: str, run_id: str, exception: str | None) -> None:
        """A query was stopped, is done, or failed with ``exception``, the text that Spark has of it."""
        before = self.snapshots().get(query_id, QuerySnapshot(query_id, run_id, None, ""))
        if before.run_id != run_id:
            return  # the query has been started again since
        failure = None if exception is None else failure_reason(RuntimeError(exception))
        now = replace(before, active=False, failure=failure)
        self._take(now)
        known: dict[str, Any] = {"query": now.name or query_id, "committed_batch": now.committed_batch}
        if failure is None:
            log.info("query_ended", **known)
        else:
            log.warning("query_failed", **known, reason=failure)

    def _take(self, snapshot: QuerySnapshot) -> None:
        with self._lock:
            self._latest.pop(snapshot.query_id, None)
            self._latest[snapshot.query_id] = snapshot
            ended = [query_id for query_id, known in self._latest.items() if not known.active]
            for query_id in ended[: max(0, len(self._latest) - _MOST_QUERIES)]:
                del self._latest[query_id]
        if self._report is not None:
            try:
                self._report(snapshot)
            except Exception as error:
                log.error("query_snapshot_not_taken", query=snapshot.name or snapshot.query_id, error=repr(error))


def after_trigger(before: QuerySnapshot, progress: Any) -> QuerySnapshot:
    """The snapshot after a trigger of the run that ``before`` is of."""
    # Without this phase Spark found nothing to do, and tells the number that the next batch will have.
    executed = "addBatch" in progress.durationMs
    written = progress.sink.numOutputRows
    rows_out = (None if written < 0 else int(written)) if executed else 0
    return replace(
        before,
        name=progress.name,
        timestamp=progress.timestamp,
        committed_batch=progress.batchId if executed else progress.batchId - 1,
        rows_in=progress.numInputRows,
        rows_out=rows_out,
        rows_per_second=_number(progress.processedRowsPerSecond),
        duration_ms=progress.durationMs.get("triggerExecution", progress.batchDuration),
        durations_ms=dict(progress.durationMs),
        watermark=progress.eventTime.get("watermark"),
        late_rows=sum(operator.numRowsDroppedByWatermark for operator in progress.stateOperators),
        state_rows=sum(operator.numRowsTotal for operator in progress.stateOperators),
        sources=tuple(found for source in progress.sources if (found := _source(source)) is not None),
        batches=before.batches + executed,
        total_rows_in=before.total_rows_in + progress.numInputRows,
        total_rows_out=before.total_rows_out + (rows_out or 0),
    )


def offsets_of(text: Any) -> Mapping[str, Any] | None:
    """Offsets of a source of Cohort, from the text in a progress; None for those of others, which may be anything."""
    try:
        found = json.loads(text)
    except (TypeError, ValueError):
        return None
    return found if isinstance(found, dict) and isinstance(found.get(KEY), dict) else None


def _source(source: Any) -> SourceSnapshot | None:
    reached, reported = offsets_of(source.endOffset), offsets_of(source.latestOffset)
    if reached is None:
        return None
    at = Positions.from_json(reached)
    ends = None if reported is None else Positions.from_json(reported)
    owner = None if reported is None else Owner.of(reported)
    known = {} if ends is None else at.known_to(ends)
    return SourceSnapshot(
        rows_in=source.numInputRows,
        offsets=dict(at.offsets),
        lag={} if ends is None else {one: max(0, ends.offsets[one] - offset) for one, offset in known.items()},
        group_id=at.group_id or None if owner is None else owner.group_id,
    )


def _furthest_behind(lag: Mapping[TopicPartition, int]) -> dict[str, int]:
    """The partitions with the largest lag, as many as a log line can take."""
    behind = nlargest(_MOST_PARTITIONS_LOGGED, ((offsets, at) for at, offsets in lag.items() if offsets))
    return {f"{at.topic}-{at.partition}": offsets for offsets, at in behind}


def _number(given: float) -> float:
    """Spark divides by durations, which may be 0."""
    return float(given) if 0 <= given < float("inf") else 0.0
