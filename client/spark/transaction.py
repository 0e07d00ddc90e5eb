"""The transaction of a batch: how it is named, how its writers join it, how the driver ends it.

All attempts of all tasks of batch N are members of one transaction, each with a producer id of its own. Spark tells the
driver which attempt of each task counts; the driver names these in EndTxn, and one decision of the coordinator commits
them with the offsets of the batch, aborts all others, and stores N. Whoever comes with N again is told that it is committed.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Final, NamedTuple, TypeVar

from client.errors import (
    AlreadyCommittedError,
    CohortError,
    CommitFailedError,
    InvalidTxnStateError,
    TransactionAbortedError,
    error_for,
)
from client.spark.options import SinkOptions
from client.spark.plan import BatchPlan, plan_told, sources_tell
from client.spark.tasks.blocking_cluster import BlockingCluster
from client.spark.tasks.blocking_connection import BlockingConnection, Until
from client.transport.cluster import CoordinatorKey
from client.transport.group_offsets import offset_commit_topics
from client.types.records import OffsetAndMetadata
from protocol.errors import ErrorCode
from protocol.messages.offsets import OffsetFetchRequest, OffsetFetchResponse
from protocol.messages.transactions import (
    EndTxnRequest,
    EndTxnResponse,
    JoinTransactionRequest,
    JoinTransactionResponse,
    TxnOffsetCommitRequest,
    TxnOffsetCommitResponse,
)
from protocol.subscription import TopicPartition

DRIVER: Final = "driver"
"""The driver as a member. A driver that is started again with the same plan for the batch is the same member: the offsets
that it commits take the place of those that the one before it left behind."""

T = TypeVar("T")


class TransactionName(NamedTuple):
    """A batch as its coordinator knows it: versions are those of ``scope``, which is a query of Spark."""

    transactional_id: str
    scope: str
    version: int

    def __str__(self) -> str:
        return f"batch {self.version} of transactional id {self.transactional_id!r}"


class BatchCommittedError(AlreadyCommittedError):
    """The batch was committed before. ``planned`` is what was planned for the last one that is committed, "" if unknown."""

    def __init__(self, name: TransactionName, reached: int, planned: str) -> None:
        super().__init__(f"{name} is committed", name.version, reached)
        self.planned = planned


class Membership(NamedTuple):
    """The producer id that a member writes under, and the producer id and epoch that name its transaction."""

    producer_id: int
    transaction: tuple[int, int]


class Coordinator:
    """The coordinator of one transaction, asked on connections that block.

    Every call is repeated until there is an answer, for ``delivery.timeout.ms`` at most.
    """

    def __init__(self, cluster: BlockingCluster, options: SinkOptions, name: TransactionName) -> None:
        self.name = name
        self._cluster = cluster
        self._options = options

    def join(self, member: str) -> Membership:
        """Joins as ``member``, or opens the transaction; a sign of life when it is joined already.

        Raises ``BatchCommittedError`` when the batch is committed.
        """
        name, timeout_ms = self.name, self._options.transaction_timeout_ms
        request = JoinTransactionRequest(*name, member, timeout_ms)

        def once(until: Until) -> JoinTransactionResponse:
            answer = self._connection(until).call(request, JoinTransactionResponse, until)
            self._check(answer.error_code, answer.error_message)
            return answer

        answer = self._repeated(once, f"joining {name}")
        if answer.committed_version >= name.version:
            raise BatchCommittedError(name, answer.committed_version, answer.committed_metadata)
        return Membership(answer.producer_id, (answer.transaction_producer_id, answer.producer_epoch))

    def take_staged(self, group_id: str, membership: Membership, plan: BatchPlan | None = None) -> None:
        """Makes what the source of ``group_id`` reads in this batch part of the transaction; just what ``plan`` says of it.

        Without a plan from a source that tells what it plans, the batch reads nothing, and just that is taken.

        Raises ``CommitFailedError`` when the group goes on from another offset, has another owner or another batch staged.
        """
        member, epoch = membership.producer_id, membership.transaction[1]
        ends = self._planned_ends(group_id) if plan is None else plan.ends
        expected = offset_commit_topics({partition: OffsetAndMetadata(end) for partition, end in ends.items()})
        request = TxnOffsetCommitRequest(
            group_id, self.name.transactional_id, member, epoch, -1, "", None, expected, staged=True
        )

        def once(until: Until) -> None:
            connection = self._cluster.connection_to_coordinator(group_id, until)
            answer = connection.call(request, TxnOffsetCommitResponse, until)
            if answer.error_code != ErrorCode.NONE:
                raise error_for(answer.error_code, answer.error_message)

        try:
            self._repeated(once, f"committing the offsets of group {group_id!r} with {self.name}")
        except CohortError as error:
            raise CommitFailedError(
                f"{self.name} is not committed, as the offsets of group {group_id!r} cannot go with it: {error}; the "
                f"source needs the same group.id as the sink. Offsets that do not fit are those of a newer checkpoint or of "
                f"another driver, or somebody moved them: go on with the newest checkpoint, set them to where this one goes "
                f"on, or begin a new one with startingOffsets=committed"
            ) from error

    def end(self, transaction: tuple[int, int], members: Sequence[int], *, committed: bool, planned: str = "") -> None:
        """Commits what ``members`` wrote and aborts the rest, or aborts all. ``planned`` is stored with the version.

        Raises ``BatchCommittedError`` when another driver has committed the batch, planned otherwise, or later ones, and
        ``TransactionAbortedError`` when the transaction to be committed is aborted.
        """
        name = self.name
        request = EndTxnRequest(
            name.transactional_id, *transaction, committed, name.version, name.scope, tuple(members), metadata=planned
        )

        def once(until: Until) -> EndTxnResponse:
            answer = self._connection(until).call(request, EndTxnResponse, until)
            self._check(answer.error_code, answer.error_message)
            return answer

        answer = self._repeated(once, f"the {'commit' if committed else 'abort'} of {name}")
        by_another = committed and answer.committed_metadata != planned
        if answer.committed_version > name.version or by_another:
            raise BatchCommittedError(name, answer.committed_version, answer.committed_metadata)

    def _planned_ends(self, group_id: str) -> Mapping[TopicPartition, int]:
        """Where a batch ends that is repeated without asking its source: where the group is. Nothing if that is not sure."""
        if not sources_tell():
            return {}

        def once(until: Until) -> OffsetFetchResponse:
            connection = self._cluster.connection_to_coordinator(group_id, until)
            answer = connection.call(OffsetFetchRequest(group_id, None), OffsetFetchResponse, until)
            self._check(answer.error_code, answer.error_message)
            return answer

        answer = self._repeated(once, f"reading the offsets of group {group_id!r}")
        return {
            TopicPartition(topic.name, partition.partition_index): partition.committed_offset
            for topic in answer.topics
            for partition in topic.partitions
            if partition.error_code == ErrorCode.NONE and partition.committed_offset >= 0
        }

    def _check(self, code: int, message: str) -> None:
        if code == ErrorCode.NONE:
            return
        if code == ErrorCode.TRANSACTION_ABORTABLE:
            raise aborted(self.name, message)
        error = error_for(code, message)
        if isinstance(error, InvalidTxnStateError):
            raise InvalidTxnStateError(
                f"{message}. A query with a new checkpoint begins with batch 0, which would be dropped as written already: "
                f"give it a transactional.id that no query had, leave the option out, or go on with the checkpoint before"
            )
        raise error

    def _connection(self, until: Until) -> BlockingConnection:
        key = self.name.transactional_id
        return self._cluster.connection_to_coordinator(key, until, CoordinatorKey.TRANSACTIONAL_ID)

    def _repeated(self, once: Callable[[Until], T], what: str) -> T:
        attempt_ms = self._options.connection.request_timeout_ms
        until = Until(self._options.delivery_timeout_ms)
        return self._cluster.retrying(lambda: once(Until(attempt_ms)), until, what)


class SignsOfLife:
    """Joins again every third of the transaction timeout, on a thread and connections of its own.

    A task may wait for its next row for any time, and its transaction must not end meanwhile. ``check`` tells what went
    wrong, ``stop`` ends it.
    """

    def __init__(self, options: SinkOptions, name: TransactionName, member: str, membership: Membership) -> None:
        self._options = options
        self._name = name
        self._member = member
        self._membership = membership
        self._failure: CohortError | None = None
        self._stopped = threading.Event()
        threading.Thread(target=self._run, name=f"cohort-{member}", daemon=True).start()

    def check(self) -> None:
        """Raises what has ended the transaction, if anything has."""
        if self._failure is not None:
            raise self._failure

    def stop(self) -> None:
        """No further sign is given; one that is under way is not waited for."""
        self._stopped.set()

    def _run(self) -> None:
        while not self._stopped.wait(self._options.transaction_timeout_ms / 3000):
            cluster = BlockingCluster(self._options.connection)
            try:
                if Coordinator(cluster, self._options, self._name).join(self._member) != self._membership:
                    raise aborted(self._name, "another transaction is open by now")
            except CohortError as error:
                if not error.retriable:
                    self._failure = error
                    return
            finally:
                cluster.close()


def aborted(name: TransactionName, why: str) -> TransactionAbortedError:
    """The transaction of a batch that was to be committed has ended."""
    return TransactionAbortedError(
        f"{name} was aborted and nothing of it takes effect: {why}. A restart of the query writes the batch again; "
        f"transaction.timeout.ms must be longer than a batch may pause"
    )


def commit(
    options: SinkOptions, name: TransactionName, winners: Sequence[Membership], plan: BatchPlan | None = None
) -> None:
    """Commits a batch: what ``winners`` wrote, and the offsets that the sources of ``group.id`` have staged.

    Raises ``BatchCommittedError`` when that was done before, and ``TransactionAbortedError`` or ``CommitFailedError`` when
    it cannot be; nothing of the batch takes effect then, once ``abort`` was called or the timeout has passed.
    """
    cluster = BlockingCluster(options.connection)
    try:
        coordinator = Coordinator(cluster, options, name)
        members = list(winners)
        plans = {group_id: plan_told(group_id) if plan is None else plan for group_id in options.group_ids}
        names = {_driver(each) for each in (plans.values() if members or plans else [plan])}
        drivers = {name: coordinator.join(name) for name in sorted(names)}
        members += drivers.values()
        if len({member.transaction for member in members}) > 1:
            raise aborted(name, "its tasks wrote in different transactions, of which the first has ended")
        for group_id, each in plans.items():
            coordinator.take_staged(group_id, drivers[_driver(each)], each)
        planned = "" if plan is None else plan.text
        producer_ids = [member.producer_id for member in members]
        coordinator.end(members[0].transaction, producer_ids, committed=True, planned=planned)
    finally:
        cluster.close()


def _driver(plan: BatchPlan | None) -> str:
    return DRIVER if plan is None else f"{DRIVER} {plan.digest}"


def planned_for(options: SinkOptions, name: TransactionName) -> str:
    """What was planned for a batch that is committed, "" if that was not known; for one with later versions the last."""
    cluster = BlockingCluster(options.connection)
    try:
        Coordinator(cluster, options, name).join(DRIVER)
    except BatchCommittedError as error:
        return error.planned
    finally:
        cluster.close()
    raise InvalidTxnStateError(f"{name} was committed, and its coordinator has forgotten it since; run the query again")


def abort(options: SinkOptions, name: TransactionName) -> None:
    """Aborts a batch that is not committed, within ``request.timeout.ms``. Joining tells which transaction that is."""
    bound_ms = min(options.delivery_timeout_ms, options.connection.request_timeout_ms)
    options = replace(options, delivery_timeout_ms=bound_ms)
    cluster = BlockingCluster(options.connection)
    try:
        coordinator = Coordinator(cluster, options, name)
        coordinator.end(coordinator.join(DRIVER).transaction, (), committed=False)
    except AlreadyCommittedError:
        return
    finally:
        cluster.close()
