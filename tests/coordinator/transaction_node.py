"""A node of a test: logs, groups and transactions as the daemon puts them together, without a listener."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import TypeVar

from coordinator.group_coordinator import GroupCoordinator
from coordinator.groups.config import GroupConfig
from coordinator.log.partition import PartitionLog
from coordinator.marker_delivery import TransactionShard
from coordinator.runtime.admission import TransactionalWrite
from coordinator.runtime.cluster import Cluster
from coordinator.runtime.effects import RequestContext
from coordinator.runtime.fair_queue import FairQueue
from coordinator.runtime.participants import TransactionName
from coordinator.runtime.timers import CoordinatorTimers
from coordinator.transaction_coordinator import TransactionCoordinator
from coordinator.transactions.config import TransactionConfig
from protocol.errors import ErrorCode
from protocol.messages import Request, Response
from protocol.messages.producers import InitProducerIdRequest, InitProducerIdResponse
from protocol.messages.transactions import DescribedTransaction, EndTxnRequest, EndTxnResponse
from protocol.record_batch import Attributes, decode_columns, iter_batches, read_header
from tests.coordinator.log.faulty_storage import KillAt
from tests.coordinator.log.transactional import transactional
from tests.coordinator.logs.test_log_manager import Hook, Node, node

Answer = TypeVar("Answer", bound=Response)

WALL_MS = 1_000_000


class Question:
    """A request of a test, and its answer."""

    def __init__(self, request: Request) -> None:
        self.request = request
        self.answered: asyncio.Future[Response] = asyncio.get_running_loop().create_future()

    def answer(self, response: Response) -> None:
        self.answered.set_result(response)


class Participant:
    """A log, as a participant of transactions."""

    def __init__(self, log: PartitionLog) -> None:
        self._log = log

    def open_epoch(self, producer_id: int) -> int | None:
        found = self._log.open_transaction(producer_id)
        return None if found is None else found.epoch


class TransactionNode:
    """The coordinators over the logs of a data directory, and what a client and a leader do with them."""

    def __init__(
        self,
        opened: Node,
        config: TransactionConfig,
        next_producer_id: Callable[[], int | None],
        cluster: Cluster | None = None,
    ) -> None:
        self.opened = opened
        self.catalog, self.logs = opened.catalog, opened.partitions
        self.timers = CoordinatorTimers(asyncio.get_running_loop())
        self.groups = GroupCoordinator(
            self.catalog,
            self.logs,
            GroupConfig(),
            self.timers,
            FairQueue(),
            new_member_id=lambda client_id: f"{client_id}-1",
            wall_ms=lambda: WALL_MS,
            cluster=cluster,
        )
        self.transactions = TransactionCoordinator(
            self.catalog,
            self.logs,
            self.groups,
            config,
            self.timers,
            FairQueue(),
            next_producer_id=next_producer_id,
            wall_ms=lambda: WALL_MS,
            cluster=cluster,
        )

    def shard(self, transactional_id: str = "t") -> TransactionShard:
        found = self.transactions.shard(transactional_id)
        assert found is not None
        return found

    def log(self, topic: str, partition: int = 0) -> PartitionLog:
        found = self.logs.get(topic, partition)
        assert found is not None
        return found

    def begin(self, request: Request, transactional_id: str = "t") -> Question:
        """Asks the shard of an id."""
        question = Question(request)
        token = self.transactions.replies.open(question)
        self.shard(transactional_id).submit(request, RequestContext(token, "client", "127.0.0.1"))
        return question

    async def ask(self, request: Request, kind: type[Answer], transactional_id: str = "t") -> Answer:
        async with asyncio.timeout(30):
            response = await self.begin(request, transactional_id).answered
        assert isinstance(response, kind)
        return response

    async def init(self, transactional_id: str = "t", timeout_ms: int = 60_000) -> tuple[int, int]:
        """The identity of a producer that starts; it has looked for the coordinator before."""
        if self.transactions.shard(transactional_id) is None:
            await self.transactions.open(transactional_id)
        request = InitProducerIdRequest(transactional_id, timeout_ms)
        response = await self.ask(request, InitProducerIdResponse, transactional_id)
        assert response.error_code == ErrorCode.NONE, response
        return response.producer_id, response.producer_epoch

    async def end(self, identity: tuple[int, int], committed: bool, transactional_id: str = "t") -> tuple[int, int]:
        """Ends a transaction; returns the identity of the next."""
        request = EndTxnRequest(transactional_id, *identity, committed)
        response = await self.ask(request, EndTxnResponse, transactional_id)
        assert response.error_code == ErrorCode.NONE, response
        return response.producer_id, response.producer_epoch

    def write(
        self,
        identity: tuple[int, int],
        topic: str,
        partition: int = 0,
        sequence: int = 0,
        transactional_id: str = "t",
        value: bytes = b"value",
    ) -> asyncio.Future[tuple[ErrorCode, str]]:
        """What a leader does with a record in a transaction; gives the record's offset as text once it is on disk."""
        done: asyncio.Future[tuple[ErrorCode, str]] = asyncio.get_running_loop().create_future()
        log = self.log(topic, partition)
        batch = transactional([b"key"], [value], [WALL_MS], identity[0], sequence, identity[1])

        def proceed() -> None:
            (result,) = log.append_all([(batch, read_header(batch))], WALL_MS)
            log.when_durable(
                result.base_offset + 1,
                lambda error: done.set_result(
                    (ErrorCode.NONE, str(result.base_offset))
                    if error is None
                    else (ErrorCode.KAFKA_STORAGE_ERROR, str(error))
                ),
            )

        def refuse(code: ErrorCode, text: str) -> None:
            done.set_result((code, text))

        key = topic, self.catalog.topic_id(topic), partition
        write = TransactionalWrite(key, Participant(log), sequence, proceed, refuse)
        self.transactions.admission.enter(TransactionName(transactional_id, *identity), [write])
        return done

    async def wrote(
        self,
        identity: tuple[int, int],
        topic: str,
        partition: int = 0,
        sequence: int = 0,
        transactional_id: str = "t",
        value: bytes = b"value",
    ) -> int:
        """As ``write``, which must succeed; returns the offset."""
        async with asyncio.timeout(30):
            code, text = await self.write(identity, topic, partition, sequence, transactional_id, value)
        assert code == ErrorCode.NONE, text
        return int(text)

    async def committed(self, topic: str, partition: int = 0) -> list[bytes]:
        """The values that a reader with read_committed sees."""
        log, values = self.log(topic, partition), list[bytes]()
        content = await log.read(log.start_offset, 1 << 24, committed=True)
        for position, header in iter_batches(content):
            if header.record_count and not header.attributes & Attributes.CONTROL:
                values += decode_columns(content, position, header).values()  # type: ignore[arg-type]
        return values

    def described(self, transactional_id: str = "t") -> DescribedTransaction:
        return self.shard(transactional_id).core.describe(transactional_id)

    async def until(self, condition: Callable[[], bool]) -> None:
        async with asyncio.timeout(30):
            while not condition():
                await asyncio.sleep(0.001)

    async def until_state(self, state: str, transactional_id: str = "t") -> None:
        await self.until(lambda: self.described(transactional_id).state == state)


@asynccontextmanager
async def transaction_node(
    path: Path,
    hook: Hook | KillAt | None = None,
    config: TransactionConfig | None = None,
    producer_ids: Callable[[], int | None] | None = None,
    first_producer_id: int = 100,
    *,
    close: bool = True,
) -> AsyncIterator[TransactionNode]:
    """A node on a data directory. With ``close=False`` it is left as a crash leaves it."""
    given = iter(range(first_producer_id, 1 << 40))
    async with node(path, hook, close=close) as opened:
        there = TransactionNode(opened, config or TransactionConfig(), producer_ids or (lambda: next(given)))
        await there.groups.start()
        await there.transactions.start()
        await there.groups.wait_loaded()
        await there.transactions.wait_loaded()
        try:
            yield there
        finally:
            if close:
                await there.transactions.close()
                await there.groups.close()
            there.timers.close()
