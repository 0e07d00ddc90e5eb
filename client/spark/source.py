"""``format("cohort")``: what Spark's planner and its tasks call. Loaded only where pyspark is."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

from pyspark.sql.datasource import DataSource, DataSourceReader, InputPartition

from client.garbage import spare_what_is_loaded
from client.spark.driver import Driver, ending_offsets, starting_offsets
from client.spark.errors import OptionsError
from client.spark.options import SourceOptions, sink_options, source_options
from client.spark.planning import Range, split
from client.spark.pushdown import Bounds, bounds_of
from client.spark.sink import CohortStreamWriter, CohortWriter
from client.spark.stream import CohortStreamReader, RangePartition, read_range

COLUMNS: Final = {
    "key": "binary",
    "value": "binary",
    "topic": "string",
    "partition": "int",
    "offset": "bigint",
    "timestamp": "timestamp",
    "timestampType": "int",
}
HEADERS: Final = {"headers": "array<struct<key:string,value:binary>>"}


class CohortDataSource(DataSource):
    """Topics of Cohort as tables and streams of Spark. Options are those of ``client.spark.options``."""

    def __init__(self, options: Mapping[str, str]) -> None:
        spare_what_is_loaded()
        super().__init__(options)
        self.options = dict(options)

    @classmethod
    def name(cls) -> str:
        """What ``format`` takes."""
        return "cohort"

    def schema(self) -> str:
        """The columns, when the query asks for no part of them."""
        given = {name.lower(): value for name, value in self.options.items()}
        return full_schema(given.get("includeheaders", "").lower() == "true")

    def reader(self, schema: Any) -> DataSourceReader:
        """Plans a batch."""
        spare_what_is_loaded()
        options = source_options(self.options, streaming=False)
        kind = CohortPushdownReader if options.pushdown else CohortReader
        return kind(options, check_schema(schema))

    def streamReader(self, schema: Any) -> CohortStreamReader:  # noqa: N802
        """Plans a stream."""
        return CohortStreamReader(source_options(self.options, streaming=True), check_schema(schema))

    def writer(self, schema: Any, overwrite: bool) -> CohortWriter:
        """Writes a batch."""
        spare_what_is_loaded()
        return CohortWriter(sink_options(self.options), schema, overwrite)

    def streamWriter(self, schema: Any, overwrite: bool) -> CohortStreamWriter:  # noqa: N802
        """Writes a stream. Spark asks for a writer when it plans a batch and once more when it commits it."""
        spare_what_is_loaded()
        given = {name.lower(): value for name, value in self.options.items()}
        options = sink_options(self.options, streaming=True)
        return CohortStreamWriter(options, schema, given.get("checkpointlocation", ""))


class CohortReader(DataSourceReader):
    """A batch: offsets are resolved once, when Spark asks for partitions."""

    def __init__(self, options: SourceOptions, schema: Any) -> None:
        self._options = options
        self._schema = schema
        self._bounds = Bounds()

    def partitions(self) -> Sequence[InputPartition]:
        """One range a task."""
        driver = Driver(self._options)
        try:
            topology = driver.topology()
            partitions = driver.partitions(topology)
            starts = starting_offsets(driver, self._options, partitions)
            ends = ending_offsets(driver, self._options, partitions)
            ids = {name: topic.topic_id for name, topic in topology.topics.items()}
            logs, known = driver.ends(tp for tp in partitions if topology.replicas(tp) > 1)
            epochs = {tp: epoch for tp, epoch in known.items() if max(starts[tp], ends[tp]) <= logs[tp]}
            ranges = [
                Range(*tp, starts[tp], ends[tp], ids.get(tp.topic, ""), epochs.get(tp, -1), epochs.get(tp, -1))
                for tp in partitions
            ]
            ranges = self._bounds.narrowed(ranges, lambda asked: driver.listed(asked))
        finally:
            driver.close()
        return [RangePartition(one) for one in split(ranges, self._options.min_partitions)]

    def read(self, partition: InputPartition) -> Iterator[Any]:
        """The records of a range."""
        return read_range(self._options, self._schema, partition)


class CohortPushdownReader(CohortReader):
    """A batch that reads only what filters on topic, partition, offset and timestamp let through.

    A class of its own, since Spark refuses a reader that takes filters while ``spark.sql.python.filterPushdown.enabled`` is
    off, and a reader cannot see that; the option ``pushdown`` says it.
    """

    def pushFilters(self, filters: list[Any]) -> Iterator[Any]:  # noqa: N802
        """Takes what narrows the ranges, and leaves to Spark what these cannot express exactly."""
        self._bounds, rest = bounds_of(filters)
        return iter(rest)


def full_schema(include_headers: bool) -> str:
    """All columns as Spark's DDL."""
    columns = COLUMNS | (HEADERS if include_headers else {})
    return ", ".join(f"{name} {kind}" for name, kind in columns.items())


def check_schema(schema: Any) -> Any:
    """``schema``, a Spark type, unless it asks for what there is not: then ``OptionsError``.

    Any of the columns may be left out: what is not asked for is not made.
    """
    known = COLUMNS | HEADERS
    faults = []
    for column in schema.fields:
        kind = column.dataType.simpleString()
        if column.name not in known:
            faults.append(f"schema: there is no column {column.name!r}, but {', '.join(known)}")
        elif kind != known[column.name]:
            hint = f"cast({column.name} as {kind}) in the query makes it one"
            faults.append(f"schema: {column.name} is {known[column.name]} and not {kind}; {hint}")
        elif not column.nullable:
            faults.append(f"schema: {column.name} must be nullable")
    if faults:
        raise OptionsError(faults)
    return schema
