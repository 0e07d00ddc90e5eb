"""Tells in the log which transaction keeps a consumer waiting: a partition is read up to the first record of an open one."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from typing import Final

from client.consumer.config import ConsumerSettings
from client.consumer.partition import PartitionState
from client.errors import CohortError
from client.log import get_logger
from client.transport.cluster import Cluster
from client.transport.deadline import Deadline
from protocol.messages.records import READ_COMMITTED, FetchedPartition
from protocol.messages.transactions import (
    DescribeProducersRequest,
    DescribeProducersResponse,
    DescribeProducersTopic,
    ListedTransaction,
    ListTransactionsRequest,
    ListTransactionsResponse,
)
from protocol.subscription import TopicPartition

FIRST_TOLD_S: Final = 10.0
"""How long a partition stands before it is told why. Transactions mostly take less than a second."""
_TOLD_AGAIN_S: Final = 60.0
_ASK_MS: Final = 5_000

log = get_logger()


@dataclass(slots=True)
class _Wait:
    """A partition has been standing at an offset since a time."""

    state: PartitionState
    offset: int
    since_s: float
    tell_at_s: float


class TransactionWatch:
    """Looks at the answers to fetches. Daemons are asked only about what is about to be told."""

    def __init__(self, cluster: Cluster, settings: ConsumerSettings) -> None:
        self._cluster = cluster
        self._settings = settings
        self._active = settings.isolation == READ_COMMITTED
        self._waits: dict[TopicPartition, _Wait] = {}
        self._telling: asyncio.Task[None] | None = None

    def saw(self, state: PartitionState, answer: FetchedPartition) -> None:
        """Takes note of an answer about a partition, after its records were taken over."""
        stable = answer.last_stable_offset
        if not self._active or stable >= answer.high_watermark or state.fetch_offset < stable:
            if self._waits:
                self._waits.pop(state.tp, None)
            return
        now_s, wait = asyncio.get_running_loop().time(), self._waits.get(state.tp)
        if wait is None or wait.offset != stable or wait.state is not state:
            self._waits[state.tp] = _Wait(state, stable, now_s, now_s + FIRST_TOLD_S)
        elif now_s >= wait.tell_at_s and self._telling is None:
            wait.tell_at_s = now_s + _TOLD_AGAIN_S
            self._telling = asyncio.create_task(self._tell(state.tp, wait), name="cohort-transaction-watch")
            self._telling.add_done_callback(self._told)

    async def stop(self) -> None:
        """Ends at once."""
        if self._telling is not None:
            self._telling.cancel()
            await asyncio.gather(self._telling, return_exceptions=True)

    def _told(self, task: asyncio.Task[None]) -> None:
        self._telling = None
        if not task.cancelled() and (error := task.exception()) is not None:
            log.error("transaction_watch_broken", client_id=self._settings.client_id, exc_info=error)

    async def _tell(self, tp: TopicPartition, wait: _Wait) -> None:
        deadline = Deadline(_ASK_MS)
        producer_id, found, error = -1, list[ListedTransaction](), ""
        try:
            producer_id = await self._producer_at(tp, wait.offset, deadline)
            if producer_id >= 0:
                found = await self._transactions_of(producer_id, deadline)
        except CohortError as failed:
            error = str(failed)
        if self._waits.get(tp) is not wait:
            return  # it was decided meanwhile
        log.warning(
            "open_transaction_awaited",
            group=self._settings.group_id,
            topic=tp.topic,
            partition=tp.partition,
            offset=wait.offset,
            waited_s=round(asyncio.get_running_loop().time() - wait.since_s, 1),
            producer_id=producer_id,
            transactional_id=found[0].transactional_id if found else None,
            open_since_ms=found[0].transaction_start_ms if found else None,
            **({"error": error} if error else {}),
            hint="records behind it come when it is decided, at the latest by its timeout; 'cohort transactions "
            "describe' shows it, and 'abort' ends it",
        )

    async def _transactions_of(self, producer_id: int, deadline: Deadline) -> list[ListedTransaction]:
        """What the coordinator of a producer says of its transaction, whichever node that is."""
        request = ListTransactionsRequest(producer_id_filters=(producer_id,))
        found: list[ListedTransaction] = []
        for address in self._cluster.topology.addresses():
            connection = await self._cluster.connection_to(address)
            answer = await connection.request(
                request, ListTransactionsResponse, timeout_s=self._cluster.attempt_s(deadline, patient=False)
            )
            found += [listed for listed in answer.transaction_states if listed.producer_id == producer_id]
        return found

    async def _producer_at(self, tp: TopicPartition, offset: int, deadline: Deadline) -> int:
        """The producer whose transaction is the first that is open, if it begins at ``offset``; otherwise -1."""
        request = DescribeProducersRequest((DescribeProducersTopic(tp.topic, (tp.partition,)),), transactions_only=True)
        connection = await self._cluster.connection_to_leader(tp)
        answer = await connection.request(
            request, DescribeProducersResponse, timeout_s=max(0.001, deadline.remaining_s())
        )
        producers = [
            producer
            for topic in answer.topics
            for partition in topic.partitions
            for producer in partition.active_producers
            if producer.current_txn_start_offset >= 0
        ]
        oldest = min(producers, key=lambda producer: producer.current_txn_start_offset, default=None)
        return oldest.producer_id if oldest is not None and oldest.current_txn_start_offset == offset else -1
