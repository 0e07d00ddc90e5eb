"""``format("cohort")``: what Spark's planner and its tasks call. Loaded only where pyspark is."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from pyspark.sql.datasource import DataSource, DataSourceReader, InputPartition

from client.spark.driver import Driver
from client.spark.options import SourceOptions, sink_options, source_options
from client.spark.planning import Range, split
from client.spark.pushdown import Bounds, bounds_of
from client.spark.resolving import ending_offsets, starting_offsets
from client.spark.schema import checked, full_schema
from client.spark.sink import CohortStreamWriter, CohortWriter
from client.spark.stream import CohortStreamReader, RangePartition, read_range


class CohortDataSource(DataSource):
    """Topics of Cohort as tables and streams of Spark. Options are those of ``client.spark.options``."""

    def __init__(self, options: Mapping[str, str]) -> None:
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
        options = source_options(self.options, streaming=False)
        kind = CohortPushdownReader if options.pushdown else CohortReader
        return kind(options, checked(schema))

    def streamReader(self, schema: Any) -> CohortStreamReader:  # noqa: N802
        """Plans a stream."""
        return CohortStreamReader(source_options(self.options, streaming=True), checked(schema))

    def writer(self, schema: Any, overwrite: bool) -> CohortWriter:
        """Writes a batch."""
        return CohortWriter(sink_options(self.options), schema, overwrite)

    def streamWriter(self, schema: Any, overwrite: bool) -> CohortStreamWriter:  # noqa: N802
        """Writes a stream."""
        return CohortStreamWriter(sink_options(self.options), schema)


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
            ranges = [Range(tp.topic, tp.partition, starts[tp], ends[tp], ids.get(tp.topic, "")) for tp in partitions]
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
