"""Writing to topics: Arrow batches of a task, sorted into partitions and sent as record batches.

With ``delivery=exactly-once``, the default of streams, every batch is one transaction, in which the rows of those task
attempts are committed that Spark names, once for each batch; see ``client.spark.transaction``. With ``at-least-once`` a task
that fails and is tried again, or a speculative copy of one, writes its rows again, and so does a micro-batch that is
repeated after a crash. Within one attempt of a task each row is written once and in order.
"""

from __future__ import annotations

import time
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final
from uuid import uuid4

from pyspark.sql.datasource import DataSourceArrowWriter, DataSourceStreamArrowWriter, WriterCommitMessage

from client.errors import AlreadyCommittedError, CohortError
from client.garbage import spare_what_is_loaded
from client.log import get_logger
from client.spark.errors import CheckpointError, OptionsError
from client.spark.options import SinkOptions
from client.spark.plan import BatchPlan, plan_of, plan_of_write, query_of, shown_plan
from client.spark.transaction import BatchCommittedError, Membership, TransactionName, abort, commit, planned_for

log = get_logger()

QUERY_ID: Final = "sql.streaming.queryId"
BATCH_ID: Final = "streaming.sql.batchId"
"""Local properties that Spark's streaming sets for its tasks: which query, and which of its batches."""
_TYPES: Final[Mapping[str, tuple[str, ...]]] = {
    "key": ("binary", "string"),
    "value": ("binary", "string"),
    "topic": ("string",),
    "partition": ("int",),
    "headers": ("array<struct<key:string,value:binary>>", "array<struct<key:string,value:string>>"),
}


@dataclass
class Written(WriterCommitMessage):
    """What one attempt of a task wrote: records by topic and partition, under which task of which batch.

    ``transaction`` is that of the batch; ``membership`` is as whom the attempt wrote in it, None without rows;
    ``committed_version`` is what it was told instead, at or above the version of a transaction that is committed.
    """

    partition_id: int = -1
    attempt: int = 0
    query_id: str | None = None
    batch_id: int | None = None
    records: dict[tuple[str, int], int] = field(default_factory=dict)
    transaction: TransactionName | None = None
    membership: Membership | None = None
    committed_version: int = -1


class _Writer(ABC):
    """What both writers share. Holds nothing but plain values: Spark pickles it to its tasks."""

    def __init__(self, options: SinkOptions, schema: Any) -> None:
        self._options = options
        check_columns(schema, options)

    def write(self, iterator: Iterator[Any]) -> Written:
        """Runs in a task: writes its rows, and returns when all of them are on disk."""
        from client.spark.tasks.writer import TaskWriter

        spare_what_is_loaded()
        written = written_by_this_task()
        if self._options.exactly_once:
            written.transaction = self._transaction(written)
        member = f"task {written.partition_id} attempt {written.attempt} {uuid4().hex}"
        with TaskWriter(self._options, wall_ms, written.transaction, member) as writer:
            for batch in iterator:
                writer.add(batch)
            writer.finish()
            written.records = {(topic, partition): count for (topic, partition), count in writer.acknowledged.items()}
            written.membership, written.committed_version = writer.membership, writer.committed_version
            return written

    @abstractmethod
    def _transaction(self, written: Written) -> TransactionName:
        """The transaction of the batch to which a task belongs."""

    def _commit(self, messages: Sequence[Written | None], plan: BatchPlan | None = None) -> None:
        """Runs on the driver: ``messages`` are of the attempts that count. Raises as ``client.spark.transaction.commit``."""
        written = [message for message in messages if message is not None]
        told = next((each for each in written if each.committed_version >= 0), None)
        if told is not None and told.transaction is not None:
            name = told.transaction
            raise AlreadyCommittedError(f"{name} is committed", name.version, told.committed_version)
        transactions = {each.transaction for each in written}
        if len(transactions) != 1 or None in transactions:
            raise OptionsError([f"tasks of one batch wrote in {len(transactions)} transactions"])
        members = [each.membership for each in written if each.membership is not None]
        commit(self._options, next(name for name in transactions if name is not None), members, plan)

    def _abort(self, messages: Sequence[Written | None], name: TransactionName | None = None) -> None:
        """Runs on the driver, also when the commit failed. ``name`` is that of the batch if no task tells it.

        Where that is not known either, or the abort fails, the next attempt at the batch joins the transaction, or its
        timeout ends it. Raises nothing: Spark would tell people no longer why the batch failed.
        """
        named = (each.transaction for each in messages if each is not None and each.transaction is not None)
        name = next(named, name)
        if self._options.exactly_once and name is not None:
            try:
                abort(self._options, name)
            except CohortError as error:
                log.warning("transaction_left_open", transaction=str(name), reason=str(error))


class CohortWriter(_Writer, DataSourceArrowWriter):
    """Writes a batch query. Topics cannot be overwritten: ``mode("overwrite")`` is refused.

    Without a version that the program gives it is a transaction of its own, under an id that is made up.
    """

    def __init__(self, options: SinkOptions, schema: Any, overwrite: bool) -> None:
        _Writer.__init__(self, options, schema)
        self._made_up = f"spark-{uuid4().hex}"
        if overwrite:
            raise OptionsError(['mode("overwrite") would delete what is in the topic, which a sink cannot; use append'])

    def commit(self, messages: list[Any]) -> None:
        """The rows are committed, or were when this version was written before.

        Raises ``OptionsError`` when it was written to another topic then: two writes have one transactional id.
        """
        if not self._options.exactly_once:
            return  # everything is on disk when the tasks return
        plan = plan_of_write(self._options.topic)
        try:
            self._commit(messages, plan)
        except AlreadyCommittedError as error:
            name = next(message.transaction for message in messages if message.transaction is not None)
            if error.committed_version == name.version:
                stored = error.planned if isinstance(error, BatchCommittedError) else planned_for(self._options, name)
                _check_write(name, plan, stored)
            log.info("version_dropped", reason=str(error))

    def abort(self, messages: list[Any]) -> None:
        """None of the rows is committed."""
        made_up = self._options.version is None
        self._abort(messages, TransactionName(self._made_up, "", 0) if made_up else None)

    def _transaction(self, written: Written) -> TransactionName:
        options = self._options
        if options.transactional_id is None or options.version is None:
            return TransactionName(self._made_up, "", 0)
        return TransactionName(options.transactional_id, written.query_id or "", options.version)


class CohortStreamWriter(_Writer, DataSourceStreamArrowWriter):
    """Writes a streaming query. ``checkpoint`` is the directory of its checkpoint, "" where that is not known.

    Exactly once is the default for those whose plans can be compared: in files of the driver, or by the offsets of groups.
    Others are asked to choose, with ``OptionsError``.
    """

    def __init__(self, options: SinkOptions, schema: Any, checkpoint: str = "") -> None:
        _Writer.__init__(self, options, schema)
        self._checkpoint = checkpoint
        if options.by_default and not options.group_ids and query_of(checkpoint) is None:
            where = f"the checkpoint {checkpoint} is not in files of the driver" if checkpoint else "it is not given"
            raise OptionsError(
                [
                    f"checkpointLocation: delivery=exactly-once, the default, compares what Spark planned for a batch, and "
                    f"{where}. Give the source and the sink the same group.id, whose offsets are compared instead; or say "
                    f"delivery=exactly-once yourself, when the checkpoint loses no file and is never copied; or "
                    f"delivery=at-least-once"
                ]
            )

    def commit(self, messages: list[Any], batchId: int) -> None:  # noqa: N803
        """The batch is committed, now or before.

        Raises ``CheckpointError`` when it was planned otherwise then, or when later batches are committed too: Spark repeats
        only the last one of a checkpoint, and as it was planned.
        """
        if not self._options.exactly_once:
            return  # everything is on disk when the tasks return
        strange = {each.batch_id for each in messages if each.batch_id != batchId}
        if strange:
            raise OptionsError([f"Spark commits batch {batchId}, and its tasks wrote batch {strange}"])
        query_id = next((each.query_id for each in messages), None)
        plan = plan_of(self._checkpoint, query_id, batchId)
        try:
            self._commit(messages, plan)
        except AlreadyCommittedError as error:
            if error.committed_version > batchId:
                raise CheckpointError(
                    f"batch {batchId} is committed, and so are later ones up to batch {error.committed_version}: the "
                    f"checkpoint is older than what the query has written, or another driver has gone on with a copy of it. "
                    f"Nothing was written; go on with the newest checkpoint, or begin a new one with "
                    f"startingOffsets=committed and another transactional.id"
                ) from error
            if plan is not None and query_id is not None:
                name = self._name(query_id, batchId)
                stored = error.planned if isinstance(error, BatchCommittedError) else planned_for(self._options, name)
                _check_plan(batchId, plan, stored)
            log.info("batch_dropped", batch=batchId, reason=str(error))

    def abort(self, messages: list[Any], batchId: int) -> None:  # noqa: N803
        """None of the rows is committed, unless all were. Without transactions what was written stays."""
        query_id = query_of(self._checkpoint)
        name = None if query_id is None else self._name(query_id, batchId)
        self._abort(messages, name)

    def _transaction(self, written: Written) -> TransactionName:
        if written.query_id is None or written.batch_id is None:
            raise OptionsError(
                [
                    f"delivery=exactly-once needs Spark's local properties {QUERY_ID} and {BATCH_ID}, which this version of "
                    "Spark does not set; use delivery=at-least-once"
                ]
            )
        return self._name(written.query_id, written.batch_id)

    def _name(self, query_id: str, batch_id: int) -> TransactionName:
        return TransactionName(self._options.transactional_id or f"spark-{query_id}", query_id, batch_id)


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


def written_by_this_task() -> Written:
    """The message of this attempt, before anything is written. Query and batch are local properties."""
    from pyspark import TaskContext

    message = Written()
    context = TaskContext.get()
    if context is not None:
        batch_id = context.getLocalProperty(BATCH_ID)
        message.partition_id, message.attempt = context.partitionId(), context.attemptNumber()
        message.query_id = context.getLocalProperty(QUERY_ID)
        message.batch_id = int(batch_id) if batch_id is not None else None
    return message


def _check_plan(batch_id: int, plan: BatchPlan, stored: str) -> None:
    """Raises ``CheckpointError`` for a batch that is committed, and was planned otherwise then, as far as that is known."""
    if stored and not plan.is_that_of(stored):
        raise CheckpointError(
            f"batch {batch_id} is committed as it was planned up to {stored}, and this checkpoint plans it up to "
            f"{plan.text}: the checkpoint has lost what it had planned, as a copy or a machine without power may, or "
            f"another driver has gone on with a copy of it. Nothing was written now. Go on with the newest checkpoint; or "
            f"begin a new one, with startingOffsets at the offsets that are committed"
        )


def _check_write(name: TransactionName, plan: BatchPlan, stored: str) -> None:
    """Raises ``OptionsError`` for a version that is committed by a write to another topic, as far as that is known."""
    if stored and not plan.is_that_of(stored):
        raise OptionsError(
            [
                f"{name} was written {shown_plan(stored)}, and this write is {shown_plan(plan.text)}: nothing of it was "
                f"written. Each write needs a transactional.id of its own, also those of one batch of foreachBatch"
            ]
        )


def wall_ms() -> int:
    """The wall clock in milliseconds since 1970: when rows are written is their timestamp."""
    return time.time_ns() // 1_000_000
