"""The admin's calls about transactions: which are open, who holds them, how to end one that holds up readers (KIP-664)."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from typing import Final

from client.admin.arguments import checked_names, checked_partition, checked_text
from client.admin.calls import AdminCalls
from client.admin.failures import all_or_failures
from client.admin.hanging import KnownTransactions, open_in_logs, still_open
from client.admin.leaders import coordinating_nodes, of_each
from client.admin.producers import abort_in_partition, describe_producers
from client.errors import TransactionalIdNotFoundError, error_for
from client.transport.cluster import Cluster, CoordinatorKey
from client.transport.connection import Connection
from client.transport.deadline import Deadline, checked_wait
from client.transport.retry import retrying
from client.types.descriptions import (
    TRANSACTION_STATES,
    HangingTransaction,
    PartitionProducers,
    TransactionDescription,
    TransactionListing,
    TransactionMemberDescription,
)
from protocol.errors import ErrorCode
from protocol.messages.transactions import (
    NO_VERSION,
    AbortTransactionRequest,
    AbortTransactionResponse,
    DescribedTransaction,
    DescribeTransactionsRequest,
    DescribeTransactionsResponse,
    ListTransactionsRequest,
    ListTransactionsResponse,
)
from protocol.subscription import TopicPartition

_TRANSACTIONS_TOPIC: Final = "__transaction_state"
_ANY_AGE: Final = -1
_DESCRIBED_AT_ONCE: Final = 64
_WITH_A_TRANSACTION: Final = frozenset({"Ongoing", "PrepareCommit", "PrepareAbort"})


class TransactionCalls(AdminCalls):
    """Base of ``Admin``: transactions are seen and aborted."""

    async def list_transactions(
        self,
        states: Iterable[str] | None = None,
        older_than_ms: int | None = None,
        *,
        producer_ids: Iterable[int] = (),
        timeout_ms: int | None = None,
    ) -> list[TransactionListing]:
        """The transactional ids of all nodes, sorted.

        With ``states`` (any case) only those in one of them, with ``older_than_ms`` only those whose transaction has been
        open for longer, with ``producer_ids`` only those under which one of these producers writes. Raises ``ValueError``
        for a state that does not exist.
        """
        age_ms = _ANY_AGE
        if older_than_ms is not None:
            age_ms = int(checked_wait("older_than_ms", "milliseconds", older_than_ms))
        request = ListTransactionsRequest(_states(states), _producer_ids(producer_ids), age_ms)
        return await _list(self._cluster, request, self._deadline(timeout_ms))

    async def describe_transactions(
        self, *transactional_ids: str, timeout_ms: int | None = None
    ) -> dict[str, TransactionDescription]:
        """Transactional ids and their transactions, in the order asked for.

        Raises ``TransactionalIdNotFoundError`` naming those that were never used or have expired.
        """
        deadline = self._deadline(timeout_ms)
        asked = checked_names("describe_transactions", "a transactional id", transactional_ids)
        return await all_or_failures({each: _describe(self._cluster, each, deadline) for each in asked})

    async def describe_producers(
        self, *partitions: TopicPartition, transactions_only: bool = False, timeout_ms: int | None = None
    ) -> dict[TopicPartition, PartitionProducers]:
        """The producers that partitions remember, and how far each partition can be read with ``read_committed``.

        With ``transactions_only`` producers are left out that have no transaction open there. Raises
        ``UnknownTopicOrPartitionError``.
        """
        asked = [checked_partition("describe_producers", partition) for partition in partitions]
        deadline = self._deadline(timeout_ms)
        return await describe_producers(self._cluster, asked, deadline, transactions_only=transactions_only)

    async def abort_transaction(
        self, transaction: str | HangingTransaction, fence: bool = False, *, timeout_ms: int | None = None
    ) -> bool:
        """Aborts the open transaction of a transactional id; returns whether one was open.

        Its producer is told with ``TransactionAbortedError`` and goes on with the next transaction; with ``fence`` it gets
        ``ProducerFencedError`` instead and has to be started anew. Raises ``TransactionalIdNotFoundError``. The request is
        sent again when its answer is lost; False may then mean that the first one did abort the transaction.

        A transaction that ``hanging_transactions`` has found is aborted in the partition where it was found.
        """
        if isinstance(transaction, HangingTransaction):
            if fence:
                raise ValueError("a hanging transaction has no producer that could be fenced; leave fence out")
            await abort_in_partition(self._cluster, transaction, self._deadline(timeout_ms))
            return True
        checked_text("a transactional id", transaction)
        return await _abort(self._cluster, transaction, fence, self._deadline(timeout_ms))

    async def hanging_transactions(self, *, timeout_ms: int | None = None) -> list[HangingTransaction]:
        """Transactions that are open in a partition of any topic and that no coordinator knows, sorted. Those with offsets
        of a group are found in its partition of ``__consumer_offsets``, where they have no offset of their own.

        There are none unless a coordinator's log is damaged or was lost: one that cannot be read knows nothing. Readers with
        ``read_committed`` wait for them until ``abort_transaction`` ends each. These readers then never see what it wrote,
        even if the lost coordinator had decided to commit it.
        """
        cluster, deadline = self._cluster, self._deadline(timeout_ms)
        topics = await self._metadata(None, deadline)
        partitions = [
            TopicPartition(topic.name, partition.partition_index)
            for topic in topics.topics
            if topic.name != _TRANSACTIONS_TOPIC
            for partition in topic.partitions
        ]
        found = await open_in_logs(cluster, partitions, deadline)
        if not found:
            return []
        listed = await _list(cluster, ListTransactionsRequest(), deadline, partial=True)
        active = [each.transactional_id for each in listed if each.state in _WITH_A_TRANSACTION]
        described = await self._describe_those_left(active, deadline)
        known = KnownTransactions(described)
        return await still_open(cluster, [each for each in found if each not in known], deadline)

    async def _describe_those_left(self, names: list[str], deadline: Deadline) -> list[TransactionDescription]:
        """Transactional ids, some at a time, without those that have expired meanwhile."""
        described: list[TransactionDescription] = []
        for start in range(0, len(names), _DESCRIBED_AT_ONCE):
            some = names[start : start + _DESCRIBED_AT_ONCE]
            described += filter(
                None, await asyncio.gather(*(_describe_if_there(self._cluster, each, deadline) for each in some))
            )
        return described


def _states(states: Iterable[str] | None) -> tuple[str, ...]:
    if not isinstance(states, Iterable | None):
        raise TypeError(f"states is {states!r}; it must be one of {', '.join(TRANSACTION_STATES)}, or several of them")
    wanted = (states,) if isinstance(states, str) else tuple(states or ())
    known = {state.lower(): state for state in TRANSACTION_STATES}
    unknown = [state for state in wanted if checked_text("a state", state).strip().lower() not in known]
    if unknown:
        raise ValueError(f"{', '.join(map(repr, unknown))}: no such state; there are {', '.join(TRANSACTION_STATES)}")
    return tuple(known[state.strip().lower()] for state in wanted)


def _producer_ids(producer_ids: Iterable[int]) -> tuple[int, ...]:
    if not isinstance(producer_ids, Iterable):
        raise TypeError(f"producer_ids is {producer_ids!r}; it must be several producer ids, such as [7]")
    return tuple(producer_ids)


async def _list(
    cluster: Cluster, request: ListTransactionsRequest, deadline: Deadline, *, partial: bool = False
) -> list[TransactionListing]:
    """The transactional ids that match, from every node that coordinates transactions.

    With ``partial`` those count that are known to the coordinators whose logs can be read.
    """

    async def once() -> list[TransactionListing]:
        nodes = await coordinating_nodes(cluster, _TRANSACTIONS_TOPIC, deadline)
        answers = await of_each(cluster, nodes, lambda connection: _listed_by(connection, request, deadline, partial))
        listed = (each for answer in answers.values() for each in answer)
        return sorted(listed, key=lambda each: each.transactional_id)

    return await retrying(once, deadline=deadline, backoff=cluster.backoff, what="ListTransactionsRequest")


async def _listed_by(
    connection: Connection, request: ListTransactionsRequest, deadline: Deadline, partial: bool
) -> list[TransactionListing]:
    response = await connection.request(request, ListTransactionsResponse, timeout_s=max(0.001, deadline.remaining_s()))
    damaged = response.error_code == ErrorCode.COORDINATOR_NOT_AVAILABLE
    if response.error_code != ErrorCode.NONE and not (partial and damaged):
        raise error_for(response.error_code, f"{connection.peer}: {response.error_message}")
    return [
        TransactionListing(
            each.transactional_id,
            each.transaction_state,
            each.producer_id,
            each.producer_epoch,
            each.transaction_start_ms if each.transaction_start_ms >= 0 else None,
        )
        for each in response.transaction_states
    ]


async def _describe(cluster: Cluster, transactional_id: str, deadline: Deadline) -> TransactionDescription:
    """One transactional id, as its coordinator sees it."""

    async def once() -> DescribedTransaction:
        response = await cluster.call_coordinator(
            transactional_id,
            DescribeTransactionsRequest((transactional_id,)),
            DescribeTransactionsResponse,
            key_type=CoordinatorKey.TRANSACTIONAL_ID,
            deadline=deadline,
        )
        (found,) = response.transaction_states
        _raise_for_id(transactional_id, found.error_code, found.error_message)
        return found

    what = f"describing transactional id {transactional_id!r}"
    found = await retrying(once, deadline=deadline, backoff=cluster.backoff, what=what)
    key_type = CoordinatorKey.TRANSACTIONAL_ID
    host, port = await cluster.coordinator_address(transactional_id, deadline, key_type=key_type)
    members = tuple(
        TransactionMemberDescription(
            member.producer_id,
            member.name,
            member.started_ms,
            tuple(sorted(TopicPartition(topic.name, index) for topic in member.topics for index in topic.partitions)),
        )
        for member in found.members
    )
    return TransactionDescription(
        transactional_id,
        found.state,
        f"{host}:{port}",
        found.producer_id,
        found.producer_epoch,
        found.transaction_timeout_ms,
        found.transaction_start_ms if found.transaction_start_ms >= 0 else None,
        members,
        found.committed_version if found.committed_version > NO_VERSION else None,
        found.version if found.version > NO_VERSION else None,
        found.scope,
        found.previous_outcome,
        found.waits_for,
    )


async def _describe_if_there(
    cluster: Cluster, transactional_id: str, deadline: Deadline
) -> TransactionDescription | None:
    try:
        return await _describe(cluster, transactional_id, deadline)
    except TransactionalIdNotFoundError:
        return None


async def _abort(cluster: Cluster, transactional_id: str, fence: bool, deadline: Deadline) -> bool:
    async def once() -> bool:
        response = await cluster.call_coordinator(
            transactional_id,
            AbortTransactionRequest(transactional_id, fence),
            AbortTransactionResponse,
            key_type=CoordinatorKey.TRANSACTIONAL_ID,
            deadline=deadline,
        )
        _raise_for_id(transactional_id, response.error_code, response.error_message)
        return response.aborted

    what = f"aborting the transaction of {transactional_id!r}"
    return await retrying(once, deadline=deadline, backoff=cluster.backoff, what=what)


def _raise_for_id(transactional_id: str, code: int, message: str) -> None:
    if code == ErrorCode.TRANSACTIONAL_ID_NOT_FOUND:
        raise TransactionalIdNotFoundError(
            f"transactional id {transactional_id!r} is not known: it was never used, or has expired; list_transactions "
            "(cohort transactions list) shows those that are"
        )
    if code != ErrorCode.NONE:
        raise error_for(code, f"transactional id {transactional_id!r}: {message}")
