"""Records as columns: for programs that hand them on to Arrow, NumPy or C without a Python object for each."""

from __future__ import annotations

from array import array
from bisect import bisect_left
from collections.abc import Iterable, Sequence
from itertools import repeat
from typing import Any, Final

from client.types.records import ConsumerRecord
from protocol.binary_column import BinaryColumn
from protocol.columns import Columns, Headers
from protocol.record_batch import Attributes, BatchHeader
from protocol.subscription import TopicPartition

__all__ = ["BinaryColumn", "RecordColumns"]


_LOG_APPEND_TIME: Final = int(Attributes.LOG_APPEND_TIME)


class RecordColumns:
    """Neighbouring records of one partition, of one batch as it is stored: columns in Arrow's layout, nothing copied.

    ``len()`` counts the records; ``columns[start:stop]`` is a part of them, again without a copy. The buffers stay valid for
    as long as something refers to them, and keep the answer that brought them (``max_partition_fetch_bytes``) in memory.
    Keys and values are bytes as they were sent: deserializers are not called.

    What is asked for is decoded then, and nothing else. So ``headers`` raises ``ProtocolError`` only when it is called, if
    they do not parse. The offsets inside a column come from the producer: code outside Python that follows them must check
    them first, as ``to_arrow`` does.
    """

    __slots__ = ("_columns", "_header", "_start", "_stop", "partition", "topic")

    def __init__(
        self, tp: TopicPartition, header: BatchHeader, columns: Columns, start: int = 0, stop: int | None = None
    ) -> None:
        self.topic, self.partition = tp
        self._header = header
        self._columns = columns
        self._start = start
        self._stop = columns.count if stop is None else stop

    def __len__(self) -> int:
        return self._stop - self._start

    def __getitem__(self, part: slice) -> RecordColumns:
        if not isinstance(part, slice):
            raise TypeError("columns are indexed by slices; values()[i] and records()[i] give single items")
        start, stop, step = part.indices(len(self))
        if step != 1:
            raise ValueError(f"the step of a slice of columns is {step}; it can only be 1")
        tp = TopicPartition(self.topic, self.partition)
        return RecordColumns(tp, self._header, self._columns, self._start + start, self._start + max(start, stop))

    def __repr__(self) -> str:
        offsets = self.offsets
        where = f"offsets {offsets[0]} to {offsets[-1]}" if len(self) else "none"
        return f"<RecordColumns {self.topic}-{self.partition}: {len(self)} records, {where}>"

    def since(self, offset: int) -> RecordColumns:
        """The records at or above ``offset``."""
        return self[bisect_left(self.offsets, offset) :]

    @property
    def offsets(self) -> Sequence[int]:
        """The offset of each record: a ``range``, or an array of int64 where compaction has left gaps."""
        base = self._header.base_offset
        if not self._columns.flags.offset_deltas:
            return range(base + self._start, base + self._stop)
        return array("q", [base + delta for delta in self._columns.offset_deltas()[self._start : self._stop]])

    @property
    def timestamps_ms(self) -> memoryview:
        """The timestamp of each record: int64, milliseconds since 1970 in UTC."""
        if self._header.attributes & _LOG_APPEND_TIME:  # the daemon's clock stands for all of them
            return memoryview(array("q", [self._header.max_timestamp]) * len(self))
        return self._columns.timestamp_column(self._start, self._stop)

    @property
    def has_log_append_time(self) -> bool:
        """Whether the timestamps are those of the daemon that stored the records, and not of who made them."""
        return bool(self._header.attributes & _LOG_APPEND_TIME)

    @property
    def key(self) -> BinaryColumn | None:
        """The buffers of the keys; ``None`` when no record of the batch has one."""
        return self._columns.key_column(self._start, self._stop)

    @property
    def value(self) -> BinaryColumn:
        """The buffers of the values."""
        return self._columns.value_column(self._start, self._stop)

    def keys(self) -> list[bytes | None]:
        """One key a record, ``None`` for one without."""
        column = self.key
        return [None] * len(self) if column is None else column.items()

    def values(self) -> list[bytes | None]:
        """One value a record, ``None`` for a tombstone."""
        return self.value.items()

    def headers(self) -> list[Headers]:
        """The headers of each record, ``()`` for one without; keys and values are not touched."""
        return self._columns.headers(self._start, self._stop)

    def records(self) -> list[ConsumerRecord]:
        """The same as ``ConsumerRecord`` objects, keys and values as bytes."""
        rows: Iterable[tuple[Any, ...]] = zip(
            repeat(self.topic, len(self)),
            repeat(self.partition),
            self.offsets,
            self.timestamps_ms,
            self.keys(),
            self.values(),
            self.headers(),
        )
        return list(map(ConsumerRecord._make, rows))

    def to_arrow(self) -> Any:
        """A ``pyarrow.RecordBatch`` around the same buffers.

        Its columns: ``offset`` int64, ``timestamp`` in milliseconds UTC, ``key`` and ``value`` binary, ``headers`` a list of
        name and value for each record. Keys, values and timestamps are not copied. Raises ``ModuleNotFoundError`` without
        pyarrow, which Cohort itself does not need, and ``pyarrow.ArrowInvalid`` for offsets that leave their column.
        """
        try:
            import pyarrow
        except ModuleNotFoundError as error:
            raise ModuleNotFoundError(
                "to_arrow() needs pyarrow, which is not installed: pip install pyarrow. The buffers themselves, key, value, "
                "timestamps_ms and offsets, are there without it",
                name="pyarrow",
            ) from error

        def binary(column: BinaryColumn | None) -> Any:
            if column is None:
                return pyarrow.nulls(len(self), pyarrow.binary())
            buffers = [column.validity, column.offsets, column.data]
            wrapped = [None if buffer is None else pyarrow.py_buffer(buffer) for buffer in buffers]
            return pyarrow.Array.from_buffers(pyarrow.binary(), len(self), wrapped)

        def int64(column: memoryview, kind: Any) -> Any:
            return pyarrow.Array.from_buffers(kind, len(self), [None, pyarrow.py_buffer(column)])

        offsets = self.offsets
        numbers = offsets if isinstance(offsets, array) else array("q", offsets)
        header = pyarrow.struct([("name", pyarrow.string()), ("value", pyarrow.binary())])
        headers = [[{"name": name, "value": value} for name, value in row] for row in self.headers()]
        batch = pyarrow.RecordBatch.from_arrays(
            [
                int64(memoryview(numbers), pyarrow.int64()),
                int64(self.timestamps_ms, pyarrow.timestamp("ms", tz="UTC")),
                binary(self.key),
                binary(self.value),
                pyarrow.array(headers, pyarrow.list_(header)),
            ],
            names=["offset", "timestamp", "key", "value", "headers"],
        )
        batch.validate(full=True)
        return batch
