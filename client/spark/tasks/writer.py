"""The rows of one task on their way into partitions."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from types import TracebackType
from typing import Any, Final, Self

import numpy
import pyarrow
import pyarrow.compute

from client.errors import AlreadyCommittedError, InvalidRecordError, MessageTooLargeError, UnknownTopicOrPartitionError
from client.spark.options import SinkOptions
from client.spark.tasks.arrow import Column, Rows, headers_column
from client.spark.tasks.blocking_cluster import BlockingCluster
from client.spark.tasks.blocking_connection import Until
from client.spark.tasks.partitioning import partitions_for
from client.spark.tasks.producer import TaskBatch, TaskProducer
from client.spark.transaction import Coordinator, Membership, SignsOfLife, TransactionName
from protocol.record_batch import HEADER_BYTES
from protocol.subscription import TopicPartition

_GATHERED_BYTES: Final = 4 * 1024 * 1024
"""Rows gathered before they are sorted into partitions: many partitions still get batches worth sending."""


class TaskWriter:
    """Takes the Arrow batches of one task attempt. ``wall_ms`` gives the timestamps of the records.

    With ``transaction`` the attempt joins it as ``member`` at its first row. ``membership`` is None before that, and
    ``committed_version`` at or above the version of a transaction that was committed before: then no row is sent.
    """

    def __init__(
        self,
        options: SinkOptions,
        wall_ms: Callable[[], int],
        transaction: TransactionName | None = None,
        member: str = "",
    ) -> None:
        self.membership: Membership | None = None
        self.committed_version = -1
        self._options = options
        self._wall_ms = wall_ms
        self._transaction = transaction
        self._member = member
        self._signs: SignsOfLife | None = None
        self._cluster = BlockingCluster(options.connection)
        transactional_id = None if transaction is None else transaction.transactional_id
        self._producer = TaskProducer(self._cluster, options, transactional_id)
        self._counts: dict[str, int] = {}
        self._gathered: list[Any] = []
        self._gathered_bytes = 0
        self._turn = 0

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._signs is not None:
            self._signs.stop()
        self._cluster.close()

    @property
    def acknowledged(self) -> dict[TopicPartition, int]:
        """Records on disk, by partition."""
        return self._producer.stored

    def add(self, batch: Any) -> None:
        """Takes a ``pyarrow.RecordBatch``; writes what was gathered once that is enough."""
        if not batch.num_rows or not self._may_write():
            return
        self._gathered.append(batch)
        self._gathered_bytes += batch.nbytes
        if self._gathered_bytes >= _GATHERED_BYTES:
            self._write()

    def finish(self) -> None:
        """Writes the rest and waits until all of it is on disk."""
        self._write()
        self._producer.flush()

    def _may_write(self) -> bool:
        """Whether rows are to be written: those of a committed batch are not. Joins the transaction if there is one."""
        if self._transaction is None:
            return True
        if self.committed_version >= self._transaction.version:
            return False
        if self._signs is not None:
            self._signs.check()
            return True
        try:
            joined = Coordinator(self._cluster, self._options, self._transaction).join(self._member)
        except AlreadyCommittedError as error:
            self.committed_version = error.committed_version
            return False
        self.membership = joined
        self._signs = SignsOfLife(self._options, self._transaction, self._member, joined)
        self._producer.begin(joined.producer_id, joined.transaction[1])
        return True

    def _write(self) -> None:
        if not self._gathered:
            return
        table = pyarrow.Table.from_batches(self._gathered)
        self._gathered, self._gathered_bytes = [], 0
        for batch in table.combine_chunks().to_batches():
            for topic, rows in self._by_topic(batch):
                self._send(topic, rows)

    def _by_topic(self, batch: Any) -> Iterator[tuple[str, Any]]:
        """The option ``topic`` goes before the column, as in Spark's Kafka sink."""
        if self._options.topic is not None:
            yield self._options.topic, batch
            return
        topics = batch.column("topic")
        if topics.null_count:
            count = topics.null_count
            said = "1 row has no topic; give it one" if count == 1 else f"{count:,} rows have no topic; give them one"
            raise InvalidRecordError(f"{said}, or the sink the option topic")
        names = pyarrow.compute.unique(topics).to_pylist()
        for name in names:
            yield name, batch if len(names) == 1 else batch.filter(pyarrow.compute.equal(topics, name))

    def _send(self, topic: str, rows: Any) -> None:
        count = self._partitions_of(topic)
        placed = self._placed(topic, rows, count)
        batch_bytes = min(self._options.batch_bytes, self._producer.most_bytes())
        now_ms, compression = self._wall_ms(), self._options.compression
        turns: list[list[TaskBatch]] = []
        for partition, part in _sorted_out(rows, placed, count):
            tp, columns = TopicPartition(topic, partition), _rows(part)
            sizes = columns.sizes()
            self._check_size(tp, int(sizes.max(initial=0)) + HEADER_BYTES)
            for turn, portion in enumerate(columns.portions(batch_bytes, sizes)):
                if turn == len(turns):
                    turns.append([])
                turns[turn].append(TaskBatch(tp, portion, now_ms, compression))
        for each in turns:
            self._producer.send(each)

    def _check_size(self, partition: TopicPartition, size: int) -> None:
        """Raises ``MessageTooLargeError`` for a row of ``size`` bytes, in a batch of its own, that no request can carry."""
        most, allowed = self._producer.most_bytes(), self._options.max_request_bytes
        if size > most:
            bound = "max.request.size of" if most == allowed else "what the daemon takes in a request,"
            advice = (
                "that option of the sink, and max.message.bytes of the topic"
                if most == allowed
                else "its max_frame_bytes"
            )
            raise MessageTooLargeError(
                f"a row for {partition.topic}-{partition.partition} takes {size:,} bytes, above {bound} {most:,}; "
                f"raise {advice}"
            )

    def _placed(self, topic: str, rows: Any, count: int) -> Any:
        """The partition of each row: the one its column says, or that of its key."""
        names = rows.schema.names
        chosen = rows.column("partition") if "partition" in names else None
        if chosen is not None and not chosen.null_count:
            placed = chosen.to_numpy()
        else:
            placed = self._by_key(rows, count)
            if chosen is not None:
                given = chosen.is_valid().to_numpy(zero_copy_only=False)
                placed = numpy.where(given, chosen.fill_null(0).to_numpy(), placed)
        if len(placed) and not 0 <= placed.min() <= placed.max() < count:
            wrong = placed.min() if placed.min() < 0 else placed.max()
            raise UnknownTopicOrPartitionError(
                f"a row names partition {wrong} of topic {topic!r}, which has partitions 0 to {count - 1}"
            )
        return placed

    def _by_key(self, rows: Any, count: int) -> Any:
        self._turn += 1
        if "key" not in rows.schema.names:
            return partitions_for(None, range(rows.num_rows), count, self._turn)
        keys = Column.of(rows.column("key"))
        return partitions_for((keys.offsets, keys.data), keys.valid, count, self._turn)

    def _partitions_of(self, topic: str) -> int:
        count = self._counts.get(topic)
        if count is None:
            until = Until(self._options.connection.request_timeout_ms)
            names = tuple(sorted({*self._counts, topic}))
            topology = self._cluster.retrying(
                lambda: self._cluster.look_up(names, until), until, f"finding topic {topic!r}"
            )
            count = self._counts[topic] = topology.partitions(topic)
        return count


def _sorted_out(rows: Any, placed: Any, count: int) -> Iterator[tuple[int, Any]]:
    """The rows of each partition, in their order."""
    if len(placed) and (placed == placed[0]).all():
        yield int(placed[0]), rows
        return
    small = placed.astype(numpy.uint16) if count <= 2**16 else placed  # sorted by radix
    order = numpy.argsort(small, kind="stable")
    moved = rows.take(pyarrow.array(order))
    borders: Any = numpy.searchsorted(placed[order], numpy.arange(count + 1)).tolist()
    for partition in range(count):
        start, stop = borders[partition], borders[partition + 1]
        if stop > start:
            yield partition, moved.slice(start, stop - start)


def _rows(part: Any) -> Rows:
    names = part.schema.names
    return Rows(
        values=Column.of(part.column("value")),
        keys=Column.of(part.column("key")) if "key" in names else None,
        headers=headers_column(part.column("headers")) if "headers" in names else None,
    )
