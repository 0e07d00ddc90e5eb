"""The source as it would be without Arrow: rows as tuples. Only a benchmark uses it, to have something to compare with."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from datetime import UTC, datetime
from itertools import chain, repeat
from typing import Any

from pyspark.sql.datasource import DataSourceReader, InputPartition
from pyspark.sql.pandas.types import to_arrow_schema

from client.spark.options import source_options
from client.spark.source import CohortDataSource, CohortReader
from client.spark.stream import RangePartition
from client.spark.tasks.reader import RangeReader
from client.types.columns import RecordColumns


class TupleReader(CohortReader):
    """Reads what ``CohortReader`` reads, row by row, with all columns but headers."""

    def read(self, partition: InputPartition) -> Iterator[Any]:
        """Tuples of the columns."""
        assert isinstance(partition, RangePartition), "there are rows to read"
        schema = to_arrow_schema(self._schema, timezone="UTC")
        reader = RangeReader(self._options, partition.range, schema)
        reader._arrow = _TupleBatches(partition.range.topic, partition.range.partition)  # type: ignore[assignment]
        return chain.from_iterable(reader.batches())


class _TupleBatches:
    """Stands where ``ArrowBatches`` does, and makes rows of the same stored columns."""

    def __init__(self, topic: str, partition: int) -> None:
        self._topic = topic
        self._partition = partition

    def batch(self, parts: Sequence[RecordColumns]) -> Iterator[tuple[Any, ...]]:
        return chain.from_iterable(map(self._rows, parts))

    def _rows(self, part: RecordColumns) -> Iterator[tuple[Any, ...]]:
        times = [datetime.fromtimestamp(milliseconds / 1000, UTC) for milliseconds in part.timestamps_ms]
        constants = repeat(self._topic), repeat(self._partition)
        return zip(part.keys(), part.values(), *constants, part.offsets, times, repeat(0), strict=False)


class CohortTuples(CohortDataSource):
    """The format ``cohort-tuples``."""

    @classmethod
    def name(cls) -> str:
        """What ``format`` takes."""
        return "cohort-tuples"

    def reader(self, schema: Any) -> DataSourceReader:
        """Plans as the real one does."""
        return TupleReader(source_options(self.options, streaming=False), schema)
