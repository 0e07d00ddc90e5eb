"""Producers in transactions without sockets: the real client above the sockets, and below them the daemon's real cores.

The client is the sender, queues, numbers and transactions of ``Producer``; the daemon is its admission, its producer state
over lists of records, and the core of the transaction coordinator. Between them is a network that loses, doubles, delays
and reorders requests; disks refuse writes, coordinators start again, administrators abort, and one producer takes over the
id of another. Time is virtual.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from random import Random
from typing import Any, TypeVar

from client.errors import CohortError, ConnectionLostError, RequestTimedOutError, TransactionUncertainError
from client.producer.accumulator import Accumulator
from client.producer.batch import BATCH_OVERHEAD_BYTES, RECORD_MEMORY_BYTES, RECORD_OVERHEAD_BYTES, ProducerBatch
from client.producer.buffer_pool import BufferPool
from client.producer.config import SenderSettings
from client.producer.partition_queue import PartitionQueues
from client.producer.sender import Sender
from client.producer.sequences import ProducerIdentity
from client.producer.transactional_records import TransactionalRecords
from client.transactions.ending import Identity
from client.transactions.identity import TransactionalIdentity
from client.transactions.lifecycle import Transactions
from client.transactions.transaction import Transaction
from client.transport.cluster import Cluster, CoordinatorKey
from client.transport.deadline import Deadline
from client.transport.retry import retrying
from client.types.records import RecordMetadata
from coordinator.log.producers import WrittenBatch
from coordinator.runtime.admission import Admission, TransactionalWrite
from coordinator.runtime.effects import Effects
from coordinator.runtime.held_commits import HeldCommits
from coordinator.runtime.participants import ParticipantKey, TransactionName
from coordinator.transactions.config import TransactionConfig
from coordinator.transactions.orders import FindOpen, MarkerOutcome, WriteMarkers
from coordinator.transactions.records import Ended, IdentityRecord
from protocol.codec import decode_message
from protocol.errors import ErrorCode
from protocol.framing import decode_request
from protocol.messages import Request, Response
from protocol.messages.offsets import CommittedPartition, CommittedTopic
from protocol.messages.records import PartitionProduceResponse, ProduceRequest, ProduceResponse
from protocol.messages.transactions import (
    AbortTransactionRequest,
    AddPartitionsToTxnRequest,
    AddPartitionsToTxnResponse,
    EndTxnRequest,
    EndTxnResponse,
    TxnOffsetCommitRequest,
    TxnOffsetCommitResponse,
)
from protocol.record_batch import Attributes, BatchHeader, read_header
from protocol.subscription import TopicPartition
from tests.client.producer.exactly_once_model import PARTITIONS, WRONG, ModelCluster, ModelDaemon, ModelLog, Trouble
from tests.client.producer.test_partition_queue import open_batch
from tests.coordinator.transactions.steps import Coordinator
from tests.simulation.loop import SimLoop

ID = "id"
TRANSACTION_TIMEOUT_MS = 8_000
OFFSETS = ("__consumer_offsets", "id-offsets", 0)
MARKER = b"marker"
LONG_S = 60.0
"""A delivery timeout within which everything has its answer."""

ResponseT = TypeVar("ResponseT", bound=Response)


@dataclass
class TransactionalLog(ModelLog):
    """One partition with what producers wrote in which transaction, and how those ended here."""

    owners: list[Identity] = field(default_factory=list)
    decided: dict[Identity, bool] = field(default_factory=dict)

    def write(self, content: bytes, header: BatchHeader, now_ms: int) -> int:
        del self.owners[len(self.values) :]
        base = super().write(content, header, now_ms)
        self.owners += [Identity(header.producer_id, header.producer_epoch)] * header.record_count
        return base

    def open_epoch(self, producer_id: int) -> int | None:
        opened = self.producers.transaction_of(producer_id)
        return None if opened is None else opened.epoch

    def last_written(self, producer_id: int, epoch: int) -> WrittenBatch | None:
        return self.producers.last_written(producer_id, epoch)

    def when_committed(self, offset: int, callback: Callable[[Exception | None], None]) -> None:
        if offset <= self.stored:
            callback(None)
        else:
            self.waiting.append(lambda succeeded: callback(None if succeeded else OSError("the disk refuses")))

    def end(self, identity: Identity, committed: bool) -> None:
        """Writes an end marker, unless the transaction is not open here."""
        self.commit(succeeds=True)
        if self.producers.end(*identity, len(self.values)):
            assert identity not in self.decided
            self.decided[identity] = committed
            self.values.append(MARKER)
            self.owners.append(Identity(-1, -1))
            self.commit(succeeds=True)

    def readable(self) -> list[bytes]:
        """What readers of committed records get."""
        return [value for value, owner in zip(self.values, self.owners, strict=False) if self.decided.get(owner)]


class GroupOffsets:
    """The offset of one group in one partition: committed, and undecided by transaction."""

    def __init__(self) -> None:
        self.committed = -1
        self.undecided: dict[int, tuple[int, int]] = {}

    def open_epoch(self, producer_id: int) -> int | None:
        found = self.undecided.get(producer_id)
        return None if found is None else found[0]

    def end(self, identity: Identity, committed: bool) -> None:
        found = self.undecided.get(identity.producer_id)
        if found is not None and found[0] == identity.epoch:
            del self.undecided[identity.producer_id]
            if committed:
                self.committed = found[1]


class ToldCoordinator(Coordinator):
    """A coordinator that tells each answer to whoever asked, and carries out its orders a while later."""

    def __init__(self, world: TransactionWorld) -> None:
        self.world = world
        self.tell: dict[int, Callable[[Response], None]] = {}
        super().__init__(TransactionConfig(last_epoch=world.random.choice((3, 32_766))))

    def put(self, request: Request, tell: Callable[[Response], None]) -> None:
        """Sends a request; ``tell`` hears the answer, unless the coordinator starts again before."""
        self.catch_up()
        self.tell[self.tokens + 1] = tell
        self.ask(request)

    def catch_up(self) -> None:
        """Time goes on here as it did in the loop."""
        self.advance(round((self.world.loop.time() - self.world.began_s) * 1000) - self.now_ms)

    def _obey(self, effects: Effects) -> None:
        super()._obey(effects)
        for token, _ in effects.replies:
            tell = self.tell.pop(token, None)
            if tell is not None:
                tell(self.answers[token])
        orders, self.orders = self.orders, []
        for order in orders:
            for partition in order.partitions:
                delay_s = self.world.random.choice((0.0005, 0.002, 0.5))
                self.world.loop.call_later(delay_s, self.world.write_marker, order, partition)

        lookups, self.lookups = self.lookups, []
        for lookup in lookups:
            self.world.loop.call_later(self.world.random.choice((0.0005, 0.002, 0.5)), self.world.look, lookup)

    def restart(self) -> None:
        self.tell.clear()
        super().restart()


class TransactionalDaemon(ModelDaemon):
    """Takes Produce requests, and those of transactions that are for leaders and for the group's coordinator."""

    def __init__(self, world: TransactionWorld) -> None:
        super().__init__(world.loop, world.random, world.trouble)
        self.logs = [TransactionalLog() for _ in range(PARTITIONS)]
        self.offsets = GroupOffsets()
        self.admission = Admission(self, world.loop.call_later)
        self.held_commits = HeldCommits(lambda topic, index: self.log(index), world.loop.call_later)
        self._world = world

    def log(self, index: int) -> TransactionalLog:
        found = self.logs[index]
        assert isinstance(found, TransactionalLog)
        return found

    def add(self, request: AddPartitionsToTxnRequest, done: Callable[[AddPartitionsToTxnResponse], None]) -> None:
        world = self._world

        def answered(answer: Response) -> None:
            assert isinstance(answer, AddPartitionsToTxnResponse)
            world.loop.call_later(world.random.choice((0.0, 0.001, 0.3)), done, answer)

        world.loop.call_later(world.random.choice((0.0, 0.001)), world.coordinator.put, request, answered)

    def produce(self, frame: bytes, tell: Callable[[ProduceResponse], None]) -> None:
        request = decode_message(ProduceRequest, decode_request(frame[4:]).body)
        assert request.transactional_id == ID
        super().produce(frame, tell)

    def _append(self, index: int, records: bytes, tell: Callable[[PartitionProduceResponse], None]) -> None:
        header = read_header(records, 0)
        assert header.attributes & Attributes.TRANSACTIONAL
        transaction, write_batches = (header.producer_id, header.producer_epoch), super()._append

        def refuse(code: ErrorCode, why: str) -> None:
            told(PartitionProduceResponse(index, code, error_message=why))

        def told(answer: PartitionProduceResponse) -> None:
            tell(answer)
            if answer.error_code not in (ErrorCode.NONE, ErrorCode.REQUEST_TIMED_OUT):
                self.held_commits.give_up(transaction, answer.error_message)

        def append() -> None:
            write_batches(index, records, told)
            self.held_commits.appended(transaction, "t", index)

        write = TransactionalWrite(("t", "id", index), self.log(index), header.base_sequence, append, refuse)
        self.admission.enter(TransactionName(ID, header.producer_id, header.producer_epoch), [write])

    def commit_offsets(self, request: TxnOffsetCommitRequest, tell: Callable[[Response], None]) -> None:
        def answer(code: ErrorCode, why: str) -> None:
            topics = (CommittedTopic("in", (CommittedPartition(0, code),)),)
            tell(TxnOffsetCommitResponse(topics, why, code))

        def take() -> None:
            offset = request.topics[0].partitions[0].committed_offset
            self.offsets.undecided[request.producer_id] = (request.producer_epoch, offset)
            answer(ErrorCode.NONE, "")

        name = TransactionName(ID, request.producer_id, request.producer_epoch)
        self.admission.enter(name, [TransactionalWrite(OFFSETS, self.offsets, 0, take, answer)])

    def end_transaction(self, request: EndTxnRequest, tell: Callable[[Response], None]) -> None:
        """An EndTxn arrives; a commit may be held until its writes are stored."""
        coordinator = self._world.coordinator

        def is_current() -> bool:
            known = coordinator.core.transactions.known(ID)
            return known is not None and known.identity.identity == (request.producer_id, request.producer_epoch)

        def refuse(why: str) -> None:
            tell(EndTxnResponse(ErrorCode.CONCURRENT_TRANSACTIONS, error_message=why))

        self.held_commits.enter(request, is_current, partial(coordinator.put, request, tell), refuse)

    def may_be_open(self, key: ParticipantKey, producer_id: int, epoch: int) -> bool:
        """Whether a transaction is open there, or waits for the coordinator's answer."""
        participant = self.offsets if key == OFFSETS else self.log(key[2])
        return participant.open_epoch(producer_id) == epoch or self.admission.awaits(key, producer_id, epoch)

    def end(self, key: ParticipantKey, ends: Sequence[tuple[int, int, bool]]) -> None:
        """An end marker arrives."""
        self.admission.marker(key, ends)
        participant = self.offsets if key == OFFSETS else self.log(key[2])
        for producer_id, epoch, committed in ends:
            participant.end(Identity(producer_id, epoch), committed)


class EndTxnExchange:
    """An EndTxn under way that no task waits for."""

    def __init__(self, cluster: TransactionalCluster, tell: Callable[[Any], None], timeout_s: float) -> None:
        self._tell: Callable[[Any], None] | None = tell
        self._timer = cluster.loop.call_later(timeout_s, self.told, RequestTimedOutError("no answer"))

    def done(self) -> bool:
        return self._tell is None

    def told(self, outcome: Any) -> None:
        tell, self._tell = self._tell, None
        self._timer.cancel()
        if tell is not None:
            tell(outcome)

    def cancel(self) -> None:
        self._tell = None
        self._timer.cancel()


class ConnectionToCoordinator:
    """A connection that is open."""

    def __init__(self, cluster: TransactionalCluster) -> None:
        self._cluster = cluster

    def begin(
        self,
        name: str,
        frame: Callable[[int, str], bytes],
        response_type: type[Response],
        tell: Callable[[Any], None],
        *,
        timeout_s: float,
    ) -> EndTxnExchange | None:
        cluster = self._cluster
        if cluster.happens(cluster.daemon.trouble.never / 2):
            return None
        request = decode_message(EndTxnRequest, decode_request(frame(1, "p")[4:]).body)
        exchange = EndTxnExchange(cluster, tell, timeout_s)
        answer: asyncio.Future[Response] = cluster.loop.create_future()
        answer.add_done_callback(lambda answer: exchange.told(answer.result()))
        cluster.put(request, answer)
        if cluster.happens(cluster.daemon.trouble.never / 4):
            cluster.loop.call_later(0.002, exchange.told, ConnectionLostError("it broke"))
        return exchange


class TransactionalCluster(ModelCluster):
    """What a transactional producer needs of a cluster."""

    request_timeout_ms = 500

    def __init__(self, world: TransactionWorld) -> None:
        super().__init__(world.loop, world.random, world.daemon)
        self._world = world

    def connection_to_known(self, key: str, key_type: CoordinatorKey) -> ConnectionToCoordinator | None:
        return ConnectionToCoordinator(self) if self.happens(0.7) else None

    async def call_coordinator(
        self,
        key: str,
        request: Request,
        response_type: type[ResponseT],
        *,
        key_type: CoordinatorKey = CoordinatorKey.GROUP,
        deadline: Deadline,
        wait_ms: int = 0,
        before_attempt: Callable[[], None],
    ) -> ResponseT:
        async def once() -> ResponseT:
            await asyncio.sleep(0.001)
            if self.happens(self.daemon.trouble.never / 2):
                raise ConnectionLostError("refused")
            before_attempt()
            answer: asyncio.Future[Response] = self.loop.create_future()
            self.put(request, answer)
            try:
                async with asyncio.timeout(min(0.5 + wait_ms / 1000, deadline.remaining_s())):
                    found = await answer
            except TimeoutError as error:
                raise RequestTimedOutError("no answer") from error
            assert isinstance(found, response_type)
            return found

        return await retrying(once, deadline=deadline, backoff=self.backoff, what=type(request).__name__)

    def put(self, request: Request, answer: asyncio.Future[Response]) -> None:
        """A request leaves."""
        trouble, daemon = self.daemon.trouble, self._world.daemon
        answered = not self.happens(trouble.answer_lost)

        def tell(response: Response) -> None:
            if answered and not answer.done():
                answer.set_result(response)

        def arrive() -> None:
            if isinstance(request, TxnOffsetCommitRequest):
                daemon.commit_offsets(request, tell)
            elif isinstance(request, EndTxnRequest):
                daemon.end_transaction(request, tell)
            else:
                self._world.coordinator.put(request, tell)

        takes_over = getattr(request, "producer_id", 0) == -1
        if self.happens(trouble.never):
            return
        late = self.happens(trouble.late) and not takes_over  # it would fence its own producer, as it does in Kafka
        self.loop.call_later(self.random.uniform(0, trouble.late_s) if late else 0.001, arrive)
        if self.happens(trouble.twice) and not takes_over:
            self.loop.call_later(self.random.uniform(0, 2 * trouble.late_s), arrive)


@dataclass
class Told:
    """What a program knows of one of its transactions."""

    transaction: Transaction
    identity: Identity | None = None
    values: list[tuple[int, bytes, asyncio.Future[RecordMetadata]]] = field(default_factory=list)
    offset: int = -1
    offset_taken: bool = False
    returned: bool = False
    """Its commit returned."""


class ModelProducer:
    """What ``Producer`` is made of, above the model of a cluster."""

    def __init__(self, world: TransactionWorld) -> None:
        trouble = world.trouble
        self.world = world
        self.numbers = ProducerIdentity(transactional=True)
        self.queues = PartitionQueues[ProducerBatch](BATCH_OVERHEAD_BYTES + 80, trouble.linger_s, self.numbers)
        self.pool = BufferPool(10**9)
        settings = SenderSettings(
            -1, None, trouble.max_in_flight, trouble.max_request_bytes, trouble.retries, 0.0,
            trouble.request_timeout_s, trouble.delivery_timeout_s,
        )  # fmt: skip
        cluster: Any = TransactionalCluster(world)
        self.cluster: Cluster = cluster
        self.sender = Sender(cluster, self.queues, self.pool, settings, self.numbers, ID)
        self.accumulator = Accumulator(self.queues, self.pool, self.queues.batch_size, None, self.sender.wake, 1.0)
        self.identity = TransactionalIdentity(cluster, ID, TRANSACTION_TIMEOUT_MS)
        self.taken = False
        records = TransactionalRecords(self.numbers, self.sender, self.accumulator, self._let_in)
        self.transactions = Transactions(cluster, self.identity, records, trouble.delivery_timeout_s * 1000)
        self.sender.on_failure = self.transactions.failed
        self.told: list[Told] = []

    def _let_in(self, taken: bool) -> None:
        self.taken = taken

    def send(self, told: Told, value: bytes) -> None:
        """Queues a record, as ``Producer.send`` does, if it is let in."""
        if not self.taken:
            return
        index = self.world.random.randrange(PARTITIONS)
        size = RECORD_OVERHEAD_BYTES + len(value)
        assert self.pool.try_reserve(size + RECORD_MEMORY_BYTES)
        future: asyncio.Future[RecordMetadata] = self.world.loop.create_future()
        queue = self.queues.queue(TopicPartition("t", index))
        open_batch(self.queues, queue, size, self.world.loop.time()).append(None, value, 0, (), size, future)
        self.sender.wake()
        told.values.append((index, value, future))

    async def stop(self) -> None:
        await self.transactions.close(None)
        self.transactions.cancel()
        await self.transactions.cancelled()
        await self.sender.close()


class TransactionWorld:
    """One history of transactions under one transactional id."""

    def __init__(
        self, seed: int, trouble: Trouble, transactions: int, *, producers: int = 1, aborts: float = 0.0
    ) -> None:
        self.random = Random(seed)
        self.loop = SimLoop(Random(seed + 1))  # type: ignore[abstract]
        self.began_s = self.loop.time()
        self.trouble = trouble
        self.transactions = transactions
        self.most_producers = producers
        self.aborts = aborts
        self.daemon = TransactionalDaemon(self)
        self.coordinator = ToldCoordinator(self)
        self.producers: list[ModelProducer] = []
        self.errors: list[CohortError] = []
        self.number = 0
        self.version = -1

    def run(self) -> None:
        self.loop.run_until_complete(self._run())
        assert not self.loop.failures, self.loop.failures
        self.check()

    def write_marker(self, order: WriteMarkers, partition: Any) -> None:
        """One end marker arrives at its partition."""
        key = (partition.topic, partition.topic_id, partition.partition)
        self.daemon.end(key, order.ends(partition))
        self.coordinator.marked(order.transaction, partition.topic_id, partition.partition, MarkerOutcome.DONE)

    def look(self, order: FindOpen) -> None:
        """Those who lead its partitions say whether a transaction is open there."""
        if not self.coordinator.core.is_unsure(order.transaction):
            return
        found = [self.daemon.may_be_open(place, order.producer_id, order.producer_epoch) for place in order.partitions]
        if any(found):
            self.loop.call_later(0.1, self.look, order)
        else:
            self.coordinator.carry_out(self.coordinator.core.not_open(order.transaction, self.coordinator.step()))

    async def _run(self) -> None:
        troubles = [asyncio.ensure_future(self._trouble())]
        programs = [asyncio.ensure_future(self._program())]
        for _ in range(self.most_producers - 1):
            await asyncio.sleep(self.random.uniform(0.5, 10.0))
            programs.append(asyncio.ensure_future(self._program()))
        await asyncio.gather(*programs)
        for trouble in troubles:
            trouble.cancel()
        await asyncio.gather(*troubles, return_exceptions=True)
        self.daemon.trouble = Trouble()
        await asyncio.sleep(3 * self.trouble.late_s)  # what is on its way arrives
        for producer in self.producers:
            await self._settled(producer)
            assert all(future.done() for told in producer.told for _, _, future in told.values)
            assert producer.pool.used == 0
            await producer.stop()
        for _ in range(4):  # the timeout of what nobody ended
            await asyncio.sleep(TRANSACTION_TIMEOUT_MS / 1000)
            self.coordinator.catch_up()
        await asyncio.sleep(2)

    async def _settled(self, producer: ModelProducer) -> None:
        try:
            await producer.transactions.settle()
        except CohortError:
            assert producer.transactions.fatal is not None

    async def _trouble(self) -> None:
        """What happens to the daemon meanwhile."""
        while True:
            await asyncio.sleep(self.random.uniform(0.05, 2.0))
            self.coordinator.catch_up()
            if self.random.random() < self.aborts:
                self.coordinator.ask(AbortTransactionRequest(ID))
            if self.random.random() < self.trouble.forgets:
                self.coordinator.restart()

    async def _program(self) -> None:
        producer = ModelProducer(self)
        while True:
            try:
                await producer.identity.take_over(Deadline(20_000))
                break
            except RequestTimedOutError:
                continue
        self.producers.append(producer)
        for _ in range(self.transactions):
            try:
                await self._transaction(producer)
            except CohortError as error:
                self.errors.append(error)
                if producer.transactions.fatal is not None:
                    return

    async def _transaction(self, producer: ModelProducer) -> None:
        random, transactions = self.random, producer.transactions
        version = -1
        if random.random() < 0.2:
            version = self.version = self.version + 1
        transaction = Transaction(transactions, producer, version)  # type: ignore[arg-type]
        await transactions.begin(transaction)
        told = Told(transaction, producer.identity.current)
        producer.told.append(told)
        for _ in range(random.choice((0, 1, 5, 20))):
            self.number += 1
            wrong = WRONG if random.random() < self.trouble.wrong else b""
            producer.send(told, wrong + b"%d" % self.number)
            if random.random() < 0.2:
                await asyncio.sleep(random.choice((0.0, 0.001, 0.02)))
        offsets: asyncio.Future[None] | None = None
        if random.random() < 0.3:
            self.number += 1
            told.offset = self.number
            offsets = asyncio.ensure_future(self._send_offsets(told))
            await asyncio.wait({offsets}, timeout=0.001 if random.random() < 0.5 else None)
        if random.random() < 0.05:
            await asyncio.sleep(random.choice((0.5, 20.0)))
        try:
            await self._end(producer, told)
        finally:
            if offsets is not None:
                await offsets

    async def _send_offsets(self, told: Told) -> None:
        """It may be under way when the transaction is ended."""
        try:
            await told.transaction.send_offsets({TopicPartition("in", 0): told.offset}, "group")
            told.offset_taken = True
        except CohortError:
            assert told.transaction.failure is not None

    async def _end(self, producer: ModelProducer, told: Told) -> None:
        random, transactions, transaction = self.random, producer.transactions, told.transaction
        choice = random.random()
        if choice < 0.2:
            await transactions.abort(transaction, random.choice((0.0, 5.0)), None)
            assert transaction.outcome == "aborted"
        elif choice < 0.4:
            commit = asyncio.ensure_future(transactions.commit(transaction))
            await asyncio.sleep(random.choice((0.0, 0.001, 0.003, 0.01)))
            commit.cancel()
            (result,) = await asyncio.gather(commit, return_exceptions=True)
            told.returned = result is None
            assert result is None or isinstance(result, CohortError | asyncio.CancelledError), result
            if transactions.is_open(transaction):  # it was cancelled before it began
                await transactions.abort(transaction, 0.0, None)
            if random.random() < 0.5:
                await self._settled(producer)
        else:
            await transactions.commit(transaction)
            told.returned = True
            assert transaction.outcome == "committed"

    # --- what has to hold -------------------------------------------------------------------------------------------

    def truth(self) -> dict[Identity, Ended]:
        """How each transaction ended, by the records of the coordinator."""
        return {
            Identity(*record.previous.identity): record.previous.how
            for record in self.coordinator.written
            if isinstance(record, IdentityRecord) and record.previous is not None
        }

    def check(self) -> None:
        truth = self.truth()
        logs = [self.daemon.log(index) for index in range(PARTITIONS)]
        for log in logs:
            assert len(set(log.values) - {MARKER}) == sum(value != MARKER for value in log.values), "a record twice"
            assert not log.producers.transactions.open(), "a transaction hangs"
            for identity, committed in log.decided.items():
                assert committed == (truth[identity] == Ended.COMMITTED), identity
        assert not self.daemon.offsets.undecided, "offsets stay undecided"
        last_offset = -1
        for producer in self.producers:
            assert self.most_producers > 1 or producer.transactions.fatal is None, producer.transactions.fatal
            for told in producer.told:
                self._check_told(told, truth, logs)
                if told.transaction.outcome == "committed" and told.offset_taken and self._is_its_own(told, truth):
                    last_offset = max(last_offset, told.offset)
        if self.most_producers == 1:
            assert self.daemon.offsets.committed == last_offset

    def _is_its_own(self, told: Told, truth: dict[Identity, Ended]) -> bool:
        """Whether it is committed itself, and not its version by another producer, or nothing that anybody heard of."""
        return told.identity is not None and truth.get(told.identity) == Ended.COMMITTED

    def _check_acknowledged(self, error: BaseException | None) -> None:
        """Of a record that is committed. Not known is true of one whose commit had no answer either for so long."""
        if error is not None:
            assert isinstance(error, TransactionUncertainError), error
            assert self.trouble.delivery_timeout_s < LONG_S, "there was time enough to find out"

    def _check_told(self, told: Told, truth: dict[Identity, Ended], logs: list[TransactionalLog]) -> None:
        outcome = told.transaction.outcome
        assert not told.returned or outcome == "committed"
        readable = [set(log.readable()) for log in logs]
        if outcome == "committed" and self._is_its_own(told, truth):
            for index, value, future in told.values:
                assert value in readable[index], "a record of a committed transaction is lost"
                self._check_acknowledged(future.exception())
        elif outcome == "aborted":
            for index, value, _ in told.values:
                assert value not in readable[index], "a record of an aborted transaction is readable"
            assert self.daemon.offsets.committed != told.offset or told.offset < 0
        elif outcome == "committed":
            assert self.most_producers > 1 or not told.values, "it is told as committed and is not"
        else:
            assert self.most_producers > 1, "what became of it is not known, although all is calm"
        order = [log.values for log in logs]
        for index in range(PARTITIONS):
            mine = [value for at, value, _ in told.values if at == index and value in order[index]]
            assert [order[index].index(value) for value in mine] == sorted(order[index].index(value) for value in mine)
