"""A streaming query: where it stands, how far the next micro-batch goes, and the group that it owns.

Spark keeps one reader in one process for a run of a query and calls it there, one call after the other; tasks get copies
that only ``read``. When Spark asks how far the next batch may go, every batch before ``start`` is complete, its output
committed: that is when the offsets go to the group, and not one batch later, when Spark calls ``commit``.
"""

from __future__ import annotations

import contextlib
import signal
import sys
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from time import perf_counter
from typing import Any
from uuid import uuid4

from pyspark.sql.datasource import DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import (
    ReadAllAvailable,
    ReadLimit,
    ReadMaxBytes,
    ReadMaxRows,
    ReadMinRows,
    SupportsTriggerAvailableNow,
)

from client.errors import CohortError
from client.garbage import spare_what_is_loaded
from client.log import get_logger
from client.spark.data_loss import surviving
from client.spark.driver import Driver, Offsets, starting_offsets
from client.spark.options import EARLIEST, LATEST, SourceOptions
from client.spark.owner import Owner
from client.spark.plan import tell_plan
from client.spark.planning import Range, limited, limited_by_bytes, split
from client.spark.positions import Positions
from client.transport.metadata import Topology
from protocol.messages.records import READ_UNCOMMITTED
from protocol.subscription import TopicPartition

log = get_logger()


class RangePartition(InputPartition):
    """One range for one task."""

    def __init__(self, part: Range) -> None:
        super().__init__(tuple(part))

    @property
    def range(self) -> Range:
        """What to read."""
        return Range(*self.value)


def read_range(options: SourceOptions, schema: Any, partition: InputPartition) -> Iterator[Any]:
    """Runs in a task: the Arrow batches of one range."""
    if not isinstance(partition, RangePartition):
        return iter(())  # Spark makes up a partition for a batch that has none
    from pyspark.sql.pandas.types import to_arrow_schema

    from client.spark.tasks.reader import RangeReader

    spare_what_is_loaded()
    return RangeReader(options, partition.range, to_arrow_schema(schema, timezone="UTC")).batches()


class CohortStreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Plans the micro-batches of one query. ``clock`` gives seconds, ``unique`` names that no other query has."""

    def __init__(
        self,
        options: SourceOptions,
        schema: Any,
        clock: Callable[[], float] = perf_counter,
        unique: Callable[[], str] = lambda: uuid4().hex,
    ) -> None:
        self._options = options
        self._schema = schema
        self._clock = clock
        self._unique = unique
        self._group_id = options.group_id
        self._driver: Driver | None = None
        self._initial: Positions | None = None
        self._ends: Positions | None = None
        self._target: Offsets | None = None
        self._last_planned_s: float | None = None

    def __getstate__(self) -> dict[str, Any]:
        return {"_options": self._options, "_schema": self._schema}

    def __setstate__(self, state: Mapping[str, Any]) -> None:
        CohortStreamReader.__init__(self, state["_options"], state["_schema"])

    def initialOffset(self) -> dict[str, Any]:  # noqa: N802
        """Where a query without a checkpoint begins; the same at every call."""
        if self._initial is None:
            topology, partitions = self._picture(complete=True)
            offsets = starting_offsets(self._connected(), self._options, partitions)
            self._name_group("")
            self._initial = self._positions(offsets, topology)
        return self._initial.to_json()

    def getDefaultReadLimit(self) -> ReadLimit:  # noqa: N802
        """What Spark gives to ``latestOffset`` unless its trigger says otherwise."""
        options = self._options
        if options.max_offsets is not None:
            return ReadMaxRows(options.max_offsets)
        if options.max_bytes is not None:
            return ReadMaxBytes(options.max_bytes)
        return ReadAllAvailable() if options.min_offsets is None else ReadMinRows(options.min_offsets)

    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802
        """Nothing that is stored from here on belongs to this run."""
        _, partitions = self._picture()
        self._target = self._connected().listed(dict.fromkeys(partitions, LATEST))

    def latestOffset(self, start: Mapping[str, Any], limit: ReadLimit) -> dict[str, Any]:  # noqa: N802
        """Where the batch after ``start`` ends: all that is there, or as much as the limits let through.

        Raises ``DataLossError`` when records were lost and ``QueryFencedError`` when another query owns the group.
        """
        driver = self._connected()
        before = Positions.from_json(start)
        topology, partitions = self._picture()
        if self._target is not None:
            partitions = tuple(partition for partition in partitions if partition in self._target)
        ends, epochs = driver.ends(partitions)
        logs = self._log_ends(before, ends)
        if self._target is not None:
            ends = {partition: min(end, self._target[partition]) for partition, end in ends.items()}
        self._name_group(before.group_id)
        self._ends = self._positions(ends, topology)
        self._own(partitions)
        driver.commit(before.known_to(self._ends))
        kept = surviving(before, topology, logs, self._options.subscribed, self._options.fail_on_data_loss)
        fresh = driver.listed(dict.fromkeys((one for one in partitions if one not in kept.offsets), EARLIEST))
        begins = {partition: kept.offsets.get(partition, fresh.get(partition, 0)) for partition in partitions}
        chosen = self._limited(begins, ends, limit)
        if any(chosen[partition] > begins[partition] for partition in partitions):
            self._last_planned_s = self._clock()
        else:
            self._plan_nothing(begins, topology)
        stays = [partition for partition, offset in chosen.items() if kept.offsets.get(partition) == offset]
        epochs = {one: epoch for one, epoch in epochs.items() if one not in stays and chosen[one] <= logs[one]}
        epochs |= {partition: kept.epochs[partition] for partition in stays if partition in kept.epochs}
        end = replace(self._positions(chosen, topology), epochs=epochs)
        if end == replace(before, begins={}):
            return dict(start)
        anew = begins if before == self._initial else fresh
        return replace(end, begins={partition: begins[partition] for partition in anew}).to_json()

    def reportLatestOffset(self) -> dict[str, Any] | None:  # noqa: N802
        """The ends of the logs, for the progress of the query; and as whom it reads, see ``client.spark.owner``."""
        if self._ends is None:
            return None
        member = None if self._driver is None else self._driver.member
        ends = self._ends.to_json()
        if member is None:
            return ends
        connection = self._options.connection
        servers = connection.bootstrap_servers, connection.client_id, connection.request_timeout_ms
        return Owner(*member, *servers).reported(ends)

    def partitions(self, start: Mapping[str, Any], end: Mapping[str, Any]) -> Sequence[InputPartition]:
        """The ranges from ``start`` to ``end``, one a task; the same at every call for a batch.

        The group is told, too, so that a sink with ``delivery=exactly-once`` commits these offsets with what comes of them.
        """
        before, ends = Positions.from_json(start), Positions.from_json(end)
        begins = self._known_begins(before, ends)
        fresh = [partition for partition in ends.offsets if partition not in begins]
        if fresh or not self._is_ready():
            _, partitions = self._picture()
            self._name_group(ends.group_id)
            self._own(partitions)
            found = self._connected().listed(dict.fromkeys(fresh, EARLIEST))
            begins |= {partition: min(offset, ends.offsets[partition]) for partition, offset in found.items()}
        ranges = [
            Range(*tp, begins[tp], offset, topic_id, before.epoch_at(tp, begins[tp], topic_id), ends.epochs.get(tp, -1))
            for tp, offset in sorted(ends.offsets.items())
            for topic_id in (ends.ids.get(tp.topic, ""),)
        ]
        self._stage({tp: (begins[tp], offset) for tp, offset in ends.offsets.items()}, ends.ids)
        return [RangePartition(one) for one in split(ranges, self._options.min_partitions)]

    def read(self, partition: InputPartition) -> Iterator[Any]:
        """The records of a range; runs in a task."""
        return read_range(self._options, self._schema, partition)

    def commit(self, end: Mapping[str, Any]) -> None:
        """Spark will not ask for anything before ``end`` again; the group knows it already."""
        if self._driver is not None and self._ends is not None:
            self._driver.commit(Positions.from_json(end).known_to(self._ends))

    def stop(self) -> None:
        """The query ends: the group is free for others."""
        driver, self._driver = self._driver, None
        if driver is None:
            return
        try:
            driver.close()
        except CohortError as error:
            log.warning("query_ended_without_leaving_its_group", error=str(error))

    def _connected(self) -> Driver:
        if self._driver is None:
            self._driver = Driver(self._options)
        return self._driver

    def _picture(self, *, complete: bool = False) -> tuple[Topology, tuple[TopicPartition, ...]]:
        driver = self._connected()
        topology = driver.topology(complete=complete)
        return topology, driver.partitions(topology)

    def _log_ends(self, before: Positions, ends: Offsets) -> Offsets:
        """Where logs end: ``ends``, or behind records of open transactions too where the query has read these already."""
        passed = {partition: LATEST for partition, end in ends.items() if before.offsets.get(partition, end) > end}
        return ends | self._connected().listed(passed, READ_UNCOMMITTED)

    def _known_begins(self, before: Positions, ends: Positions) -> Offsets:
        """Where the batch from ``before`` to ``ends`` begins; without partitions in which it begins at their start.

        Spark asks anew for the initial offset when it repeats the first batch, and that may be anywhere by now.
        """
        known = {
            partition: offset
            for partition, offset in before.offsets.items()
            if before.ids.get(partition.topic) == ends.ids.get(partition.topic)
        }
        if before == self._initial:
            known = {partition: min(offset, ends.offsets.get(partition, offset)) for partition, offset in known.items()}
        known = {
            partition: offset for partition, offset in known.items() if offset <= ends.offsets.get(partition, offset)
        }
        return {**known, **ends.begins}

    def _is_ready(self) -> bool:
        """Whether this process has planned before, and owns its group if there is one: a batch may be repeated first."""
        grouped = self._options.group_id is not None or self._options.group_id_prefix is not None
        return self._driver is not None and (self._driver.owns_group or not grouped)

    def _own(self, partitions: Sequence[TopicPartition]) -> None:
        if self._group_id is not None:
            _leave_when_terminated()
            self._connected().own(self._group_id, partitions)

    def _name_group(self, kept: str) -> None:
        """Makes up a name if one is wanted: the one that the checkpoint has kept, so that a restart has the same group."""
        if self._options.group_id_prefix is not None:
            self._group_id = kept or self._group_id or f"{self._options.group_id_prefix}-{self._unique()}"

    def _plan_nothing(self, begins: Offsets, topology: Topology) -> None:
        """The next batch reads nothing here, and Spark does not ask for its ranges: it may have other sources, or state.

        When everything is done that this run was to read, Spark may end the process without a word: the group is given up.
        """
        ids = {name: topic.topic_id for name, topic in topology.topics.items()}
        self._stage({partition: (offset, offset) for partition, offset in begins.items()}, ids)
        if self._target is not None:
            self._connected().release()

    def _stage(self, spans: Mapping[TopicPartition, tuple[int, int]], ids: Mapping[str, str]) -> None:
        """The next batch reads these offsets: the group is told, and the sink of this driver."""
        driver = self._connected()
        driver.stage(spans, ids)
        if driver.owns_group and self._group_id is not None:
            tell_plan(self._group_id, Positions({partition: end for partition, (_, end) in spans.items()}, ids))

    def _positions(self, offsets: Mapping[TopicPartition, int], topology: Topology) -> Positions:
        topics = {partition.topic for partition in offsets}
        ids = {name: topic.topic_id for name, topic in topology.topics.items() if name in topics}
        made_up = self._group_id if self._options.group_id_prefix is not None else None
        return Positions(offsets, ids, topology.cluster_id, made_up or "")

    def _limited(self, begins: Offsets, ends: Offsets, limit: ReadLimit) -> Offsets:
        options = self._options
        spans = {partition: (begins[partition], max(begins[partition], ends[partition])) for partition in ends}
        everything = {partition: end for partition, (_, end) in spans.items()}
        if isinstance(limit, ReadAllAvailable):
            return everything
        available = sum(end - start for start, end in spans.values())
        if options.min_offsets is not None and self._target is None and available < options.min_offsets:
            if self._last_planned_s is None:
                self._last_planned_s = self._clock()
            if self._clock() - self._last_planned_s < options.max_trigger_delay_s:
                return dict(begins)
        chosen = everything
        if options.max_offsets is not None:
            chosen = limited(spans, options.max_offsets)
        if options.max_bytes is not None:
            spans = {partition: (start, chosen[partition]) for partition, (start, _) in spans.items()}
            asked = {partition: start for partition, (start, end) in spans.items() if end > start}
            chosen = limited_by_bytes(spans, self._connected().record_bytes(asked), options.max_bytes)
        return chosen


def _leave_when_terminated() -> None:
    """Spark ends this process with SIGTERM; as an exception it lets ``stop`` run."""
    if threading.current_thread() is threading.main_thread() and signal.getsignal(signal.SIGTERM) == signal.SIG_DFL:
        with contextlib.suppress(ValueError):
            signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
