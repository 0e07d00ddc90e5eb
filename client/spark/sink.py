"""Writing to topics: Arrow batches of a task, sorted into partitions and sent as record batches.

Delivery is at least once: a task that fails and is tried again, or a speculative copy of one, writes its rows again, and so
does a micro-batch that is repeated after a crash. Within one attempt of a task each row is written once and in order.
The messages that tasks return name the attempt and what it wrote, which is what a commit of the winners' rows needs.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from pyspark.sql.datasource import DataSourceArrowWriter, DataSourceStreamArrowWriter, WriterCommitMessage

from client.garbage import spare_what_is_loaded
from client.spark.errors import OptionsError
from client.spark.options import SinkOptions

_TYPES: Final[Mapping[str, tuple[str, ...]]] = {
    "key": ("binary", "string"),
    "value": ("binary", "string"),
    "topic": ("string",),
    "partition": ("int",),
    "headers": ("array<struct<key:string,value:binary>>", "array<struct<key:string,value:string>>"),
}


@dataclass
class Written(WriterCommitMessage):
    """What one attempt of a task wrote: records by topic and partition, under which task of which batch."""

    partition_id: int = -1
    attempt: int = 0
    query_id: str | None = None
    batch_id: int | None = None
    records: dict[tuple[str, int], int] = field(default_factory=dict)


class _Writer:
    """What both writers share. Holds nothing but plain values: Spark pickles it to its tasks."""

    def __init__(self, options: SinkOptions, schema: Any) -> None:
        self._options = options
        check_columns(schema, options)

    def write(self, iterator: Iterator[Any]) -> Written:
        """Runs in a task: writes its rows, and returns when all of them are on disk."""
        from client.spark.tasks.writer import TaskWriter

        spare_what_is_loaded()
        with TaskWriter(self._options, wall_ms) as writer:
            for batch in iterator:
                writer.add(batch)
            writer.finish()
            return written_by_this_task(writer.acknowledged)


class CohortWriter(_Writer, DataSourceArrowWriter):
    """Writes a batch query. Topics cannot be overwritten: ``mode("overwrite")`` is refused."""

    def __init__(self, options: SinkOptions, schema: Any, overwrite: bool) -> None:
        _Writer.__init__(self, options, schema)
        if overwrite:
            raise OptionsError(['mode("overwrite") would delete what is in the topic, which a sink cannot; use append'])


class CohortStreamWriter(_Writer, DataSourceStreamArrowWriter):
    """Writes a streaming query."""

    def __init__(self, options: SinkOptions, schema: Any) -> None:
        _Writer.__init__(self, options, schema)

    def commit(self, messages: list[Any], batchId: int) -> None:  # noqa: N803
        """Everything is on disk when the tasks return."""

    def abort(self, messages: list[Any], batchId: int) -> None:  # noqa: N803
        """What was written stays: at least once."""


def check_columns(schema: Any, options: SinkOptions) -> None:
    """Raises ``OptionsError`` unless rows of this schema can be written. Columns with other names are not looked at."""
    faults = []
    found = {column.name: column.dataType.simpleString() for column in schema.fields}
    if "value" not in found:
        faults.append(f"the rows have no column value, but {', '.join(found) or 'none'}; select(... as value)")
    if "topic" not in found and options.topic is None:
        faults.append("neither the option topic nor a column topic says where the rows go")
    for name, kinds in _TYPES.items():
        if name in found and found[name] not in kinds:
            faults.append(f"column {name} is {found[name]}; it must be {' or '.join(kinds)}")
    if faults:
        raise OptionsError(faults)


def written_by_this_task(records: Mapping[Any, int]) -> Written:
    """The message of this attempt. Query and batch are local properties that Spark's streaming sets for its tasks."""
    from pyspark import TaskContext

    message = Written(records={(topic, partition): count for (topic, partition), count in records.items()})
    context = TaskContext.get()
    if context is not None:
        batch_id = context.getLocalProperty("streaming.sql.batchId")
        message.partition_id, message.attempt = context.partitionId(), context.attemptNumber()
        message.query_id = context.getLocalProperty("sql.streaming.queryId")
        message.batch_id = int(batch_id) if batch_id is not None else None
    return message


def wall_ms() -> int:
    """The wall clock in milliseconds since 1970: when rows are written is their timestamp."""
    return time.time_ns() // 1_000_000
