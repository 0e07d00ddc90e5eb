"""The source as it would be without Arrow: rows as tuples. Only a benchmark uses it, to have something to compare with."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import repeat
from typing import Any

from pyspark.sql.datasource import DataSourceReader, InputPartition

from client.spark.source import CohortDataSource, CohortReader


class TupleReader(CohortReader):
    """Reads what ``CohortReader`` reads, row by row."""

    def read(self, partition: InputPartition) -> Iterator[Any]:
        """Tuples of the columns."""
        for batch in super().read(partition):
            columns = [
                column.to_pylist() if str(column.type) != "string" else repeat(column[0].as_py())
                for column in batch.columns
            ]
            yield from zip(*columns, strict=False)


class CohortTuples(CohortDataSource):
    """The format ``cohort-tuples``."""

    @classmethod
    def name(cls) -> str:
        """What ``format`` takes."""
        return "cohort-tuples"

    def reader(self, schema: Any) -> DataSourceReader:
        """Plans as the real one does."""
        planned = super().reader(schema)
        assert isinstance(planned, CohortReader), "pushdown is off"
        return TupleReader(planned._options, schema)
