"""What Spark takes from a source in Python at most, and what one gives to a sink: Arrow batches that are ready, and are
dropped, without a network. For benchmarks.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

from pyspark.sql.datasource import (
    DataSource,
    DataSourceArrowWriter,
    DataSourceReader,
    DataSourceStreamArrowWriter,
    DataSourceStreamReader,
    InputPartition,
    WriterCommitMessage,
)

from client.garbage import spare_what_is_loaded
from client.spark.source import full_schema

_BATCH_BYTES: Final = 4 * 1024 * 1024
"""As much as one answer of a daemon brings."""


class ReadyReader(DataSourceReader):
    """Yields one batch over and over."""

    def __init__(self, options: dict[str, str], schema: Any) -> None:
        self._rows, self._size = int(options["rows"]), int(options["size"])
        self._partitions = int(options["partitions"])
        self._schema = schema

    def partitions(self) -> Sequence[InputPartition]:
        """As many as a topic would have."""
        return [InputPartition(number) for number in range(self._partitions)]

    def read(self, partition: InputPartition) -> Iterator[Any]:
        """All columns of the source, each the same in every row but the keys and offsets."""
        spare_what_is_loaded()
        import pyarrow
        from pyspark.sql.pandas.types import to_arrow_schema

        left = self._rows // self._partitions
        count = min(left, _BATCH_BYTES // self._size)
        columns = [
            pyarrow.array([b"%016d" % number for number in range(count)], pyarrow.binary()),
            pyarrow.array([bytes(self._size)] * count, pyarrow.binary()),
            pyarrow.repeat(pyarrow.scalar("ready"), count),
            pyarrow.repeat(pyarrow.scalar(partition.value, pyarrow.int32()), count),
            pyarrow.array(range(count), pyarrow.int64()),
            pyarrow.repeat(pyarrow.scalar(1_700_000_000_000_000, pyarrow.timestamp("us", tz="UTC")), count),
            pyarrow.repeat(pyarrow.scalar(0, pyarrow.int32()), count),
        ]
        batch = pyarrow.RecordBatch.from_arrays(columns, schema=to_arrow_schema(self._schema, timezone="UTC"))
        while left > 0:
            yield batch if left >= count else batch.slice(0, left)
            left -= count


class ReadyStream(DataSourceStreamReader):
    """There is always a next batch, of a row a partition."""

    def __init__(self, options: dict[str, str], schema: Any) -> None:
        self._reader = ReadyReader(options | {"rows": options["partitions"]}, schema)

    def initialOffset(self) -> dict[str, int]:  # noqa: N802
        """Before the first batch."""
        return {"batch": 0}

    def latestOffset(self, start: Mapping[str, int], limit: Any) -> dict[str, int]:  # noqa: N802
        """After one more."""
        return {"batch": start["batch"] + 1}

    def partitions(self, start: Mapping[str, int], end: Mapping[str, int]) -> Sequence[InputPartition]:
        """As many as a topic would have."""
        return self._reader.partitions()

    def read(self, partition: InputPartition) -> Iterator[Any]:
        """One row."""
        return self._reader.read(partition)


class _Dropping:
    """Takes Arrow batches, and does nothing with them."""

    def write(self, iterator: Iterator[Any]) -> WriterCommitMessage:
        spare_what_is_loaded()
        for _ in iterator:
            pass
        return WriterCommitMessage()

    def commit(self, *given: Any) -> None:
        pass

    def abort(self, *given: Any) -> None:
        pass


class DroppingWriter(_Dropping, DataSourceArrowWriter):
    """For batches."""


class DroppingStreamWriter(_Dropping, DataSourceStreamArrowWriter):
    """For streams."""


class ReadyBatches(DataSource):
    """The format ``cohort-floor``, with the options ``rows``, ``size`` of a value in bytes, and ``partitions``; a stream has
    no end, and a sink no options."""

    @classmethod
    def name(cls) -> str:
        """What ``format`` takes."""
        return "cohort-floor"

    def schema(self) -> str:
        """The columns of the real source."""
        return full_schema(include_headers=False)

    def reader(self, schema: Any) -> DataSourceReader:
        """Plans a batch."""
        return ReadyReader(dict(self.options), schema)

    def streamReader(self, schema: Any) -> DataSourceStreamReader:  # noqa: N802
        """Plans a stream."""
        return ReadyStream(dict(self.options), schema)

    def writer(self, schema: Any, overwrite: bool) -> DroppingWriter:
        """Takes a batch."""
        spare_what_is_loaded()
        return DroppingWriter()

    def streamWriter(self, schema: Any, overwrite: bool) -> DroppingStreamWriter:  # noqa: N802
        """Takes a stream."""
        spare_what_is_loaded()
        return DroppingStreamWriter()
