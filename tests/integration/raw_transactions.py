"""A transactional producer made of plain requests: it sends what a test says, in whatever order, and believes nothing."""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager

from client.transport.cluster import Cluster, CoordinatorKey
from client.transport.deadline import Deadline
from client.transport.retry import retrying
from protocol.errors import ErrorCode
from protocol.messages.producers import InitProducerIdRequest, InitProducerIdResponse
from protocol.messages.records import (
    READ_COMMITTED,
    PartitionProduceData,
    PartitionProduceResponse,
    ProduceRequest,
    ProduceResponse,
    TopicProduceData,
)
from protocol.messages.transactions import (
    AbortTransactionRequest,
    AbortTransactionResponse,
    EndTxnRequest,
    EndTxnResponse,
    LastSequence,
    UnacknowledgedTopic,
)
from protocol.subscription import TopicPartition
from tests.coordinator.server.produce_node import batch
from tests.integration.fetched import values

TOPIC = "t"


class RawTransactions:
    """Speaks for one transactional id under the identity that it was told last."""

    def __init__(self, cluster: Cluster, transactional_id: str) -> None:
        self.cluster = cluster
        self.transactional_id = transactional_id
        self.producer_id, self.epoch = -1, -1
        self._sequences: defaultdict[int, int] = defaultdict(int)

    async def init(self, *, again: bool = False, timeout_ms: int = 60_000) -> InitProducerIdResponse:
        """Takes the id over; with ``again`` as the producer that it is."""
        identity = (self.producer_id, self.epoch) if again else (-1, -1)
        response = await self.cluster.call_coordinator(
            self.transactional_id,
            InitProducerIdRequest(self.transactional_id, timeout_ms, *identity),
            InitProducerIdResponse,
            key_type=CoordinatorKey.TRANSACTIONAL_ID,
        )
        if response.error_code == ErrorCode.NONE:
            self.is_now(response.producer_id, response.producer_epoch)
        return response

    def is_now(self, producer_id: int, epoch: int) -> None:
        """The next transaction begins under this identity."""
        if producer_id >= 0:
            self.producer_id, self.epoch = producer_id, epoch
            self._sequences.clear()

    def copy(self) -> RawTransactions:
        """Another process that believes to be this one."""
        other = RawTransactions(self.cluster, self.transactional_id)
        other.is_now(self.producer_id, self.epoch)
        other._sequences.update(self._sequences)
        return other

    async def produce(
        self, contents: Mapping[int, Sequence[bytes]], *, topic: str = TOPIC, sequence: int | None = None
    ) -> dict[int, PartitionProduceResponse]:
        """One request with values by partition. ``sequence`` is said instead of the one that comes next."""
        data = []
        for index, wanted in contents.items():
            first = self._sequences[index] if sequence is None else sequence
            records = batch(first, *wanted, epoch=self.epoch, producer_id=self.producer_id)
            data.append(PartitionProduceData(index, records))
        request = ProduceRequest(self.transactional_id, -1, 20_000, (TopicProduceData(topic, tuple(data)),))
        await self.cluster.topic_partitions(topic)

        async def once() -> ProduceResponse:
            connection = await self.cluster.connection_to_leader(TopicPartition(topic, 0))
            return await connection.request(request, ProduceResponse, timeout_s=30)

        # A connection may have broken: the batches have numbers, so they are stored once.
        response = await retrying(once, deadline=Deadline(30_000), backoff=self.cluster.backoff, what="producing")
        answers = {answer.index: answer for answer in response.responses[0].partition_responses}
        for index, wanted in contents.items():
            if sequence is None and answers[index].error_code == ErrorCode.NONE:
                self._sequences[index] += len(wanted)
        return answers

    async def codes(
        self, contents: Mapping[int, Sequence[bytes]], *, topic: str = TOPIC, sequence: int | None = None
    ) -> list[int]:
        """The error codes of ``produce``."""
        answers = await self.produce(contents, topic=topic, sequence=sequence)
        return [answers[index].error_code for index in contents]

    async def end(
        self, committed: bool, *, version: int = -1, unacknowledged: Mapping[int, int] | None = None, topic: str = TOPIC
    ) -> EndTxnResponse:
        """Commits or aborts, and goes on under the identity that follows.

        ``unacknowledged`` are partitions with the last sequence that has to be stored before the commit is decided.
        """
        last = tuple(LastSequence(index, sequence) for index, sequence in (unacknowledged or {}).items())
        writes = (UnacknowledgedTopic(topic, last),) if last else ()
        response = await self.cluster.call_coordinator(
            self.transactional_id,
            EndTxnRequest(
                self.transactional_id, self.producer_id, self.epoch, committed, version, unacknowledged=writes
            ),
            EndTxnResponse,
            key_type=CoordinatorKey.TRANSACTIONAL_ID,
        )
        if response.error_code == ErrorCode.NONE:
            self.is_now(response.producer_id, response.producer_epoch)
        return response

    async def abort_as_administrator(self, *, fence: bool = False) -> AbortTransactionResponse:
        """What an administrator asks."""
        return await self.cluster.call_coordinator(
            self.transactional_id,
            AbortTransactionRequest(self.transactional_id, fence),
            AbortTransactionResponse,
            key_type=CoordinatorKey.TRANSACTIONAL_ID,
        )


@asynccontextmanager
async def connected(address: str) -> AsyncIterator[Cluster]:
    """A client of the daemon, which finds it again after a restart."""
    cluster = Cluster(address, client_id="raw", request_timeout_ms=30_000)
    await cluster.start()
    try:
        yield cluster
    finally:
        await cluster.close()


async def committed(address: str, topic: str = TOPIC) -> dict[int, list[bytes | None]]:
    """What readers with read_committed see, by partition."""
    return await values(address, topic, READ_COMMITTED)


async def becomes_committed(
    address: str, expected: Mapping[int, Sequence[bytes]], topic: str = TOPIC
) -> dict[int, list[bytes | None]]:
    """What is committed once it is as expected, or after ten seconds: end markers come shortly after the decision."""
    found: dict[int, list[bytes | None]] = {}

    async def look() -> bool:
        nonlocal found
        found = await committed(address, topic)
        return found == {index: list(wanted) for index, wanted in expected.items()}

    await until(look)
    return found


async def until(condition: Callable[[], object], timeout_s: float = 30) -> None:
    """Waits for a condition, but not for long: what is asserted behind it says more than a timeout."""
    loop = asyncio.get_running_loop()
    end_s = loop.time() + timeout_s
    while loop.time() < end_s:
        met = condition()
        if asyncio.iscoroutine(met):
            met = await met
        if met:
            return
        await asyncio.sleep(0.02)
