"""A producer without sockets: the real sender, queues and numbers before a model of a network and of a daemon.

The daemon is the real code that decides about sequences over a list of records. Between the two is a network that loses,
doubles, delays and reorders requests beyond any order that TCP would keep; the daemon's disk refuses writes or is slow, it
finds batches too large and records wrong, and forgets producers. Time is virtual.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from random import Random
from typing import Any

from client.errors import CohortError, ConnectionLostError, RequestTimedOutError
from client.producer.batch import BATCH_OVERHEAD_BYTES, RECORD_MEMORY_BYTES, RECORD_OVERHEAD_BYTES, ProducerBatch
from client.producer.buffer_pool import BufferPool
from client.producer.config import SenderSettings
from client.producer.partition_queue import PartitionQueues
from client.producer.sender import Sender
from client.producer.sequences import ProducerIdentity
from client.transport.connection import Frame
from client.transport.metadata import Topology
from client.transport.retry import Backoff
from client.types.records import RecordMetadata
from coordinator.log.errors import ProducerStateError
from coordinator.log.producers import Producers, append_once_each
from coordinator.server.handlers.produce import CODES
from protocol.codec import decode_message
from protocol.errors import ErrorCode
from protocol.framing import decode_request
from protocol.messages.cluster import PartitionMetadata, TopicMetadata
from protocol.messages.producers import InitProducerIdResponse
from protocol.messages.records import (
    PartitionProduceResponse,
    ProduceRequest,
    ProduceResponse,
    TopicProduceResponse,
)
from protocol.record_batch import BatchHeader, decode_columns, read_header
from protocol.subscription import TopicPartition
from tests.client.producer.test_partition_queue import open_batch
from tests.simulation.loop import SimLoop

PARTITIONS = 2
WRONG = b"!"
"""What the value of a record begins with that the daemon refuses."""


@dataclass(frozen=True)
class Trouble:
    """Chances, 0 to 1, and what producer and daemon are told. ``late_s``: how long a request may be on its way."""

    never: float = 0.0
    answer_lost: float = 0.0
    twice: float = 0.0
    late: float = 0.0
    late_s: float = 3.0
    write_fails: float = 0.0
    write_slow: float = 0.0
    wrong: float = 0.0
    forgets: float = 0.0
    fenced: float = 0.0
    moves: float = 0.0
    max_message_bytes: int = 10**6
    shrinks: bool = False
    request_timeout_s: float = 0.5
    delivery_timeout_s: float = 60.0
    retries: int | None = None
    linger_s: float = 0.0
    max_request_bytes: int = 100_000
    max_in_flight: int = 5


@dataclass
class ModelLog:
    """One partition: what is in the log, and what may still be refused by the disk."""

    producers: Producers = field(default_factory=Producers)
    values: list[bytes] = field(default_factory=list)
    stored: int = 0
    waiting: list[Callable[[bool], None]] = field(default_factory=list)

    def write(self, content: bytes, header: BatchHeader, now_ms: int) -> int:
        base = len(self.values)
        self.values += [value or b"" for value in decode_columns(content, 0, read_header(content)).values()]
        return base

    def commit(self, succeeds: bool) -> None:
        """A group commit: what was appended is stored, or taken back."""
        if succeeds:
            self.stored = len(self.values)
            self.producers.settle(self.stored)
        else:
            del self.values[self.stored :]
            self.producers.undo()
        waiting, self.waiting = self.waiting, []
        for tell in waiting:
            tell(succeeds)


class ModelDaemon:
    """Takes Produce requests as bytes and answers them after a commit."""

    def __init__(self, loop: SimLoop, random: Random, trouble: Trouble) -> None:
        self.logs = [ModelLog() for _ in range(PARTITIONS)]
        self.trouble = trouble
        self.incarnation = 0
        self._loop = loop
        self._random = random

    def produce(self, frame: bytes, tell: Callable[[ProduceResponse], None]) -> None:
        request = decode_message(ProduceRequest, decode_request(frame[4:]).body)
        answers: list[PartitionProduceResponse] = []
        wanted = sum(len(topic.partition_data) for topic in request.topic_data)

        def one(answer: PartitionProduceResponse) -> None:
            answers.append(answer)
            if len(answers) == wanted:
                tell(ProduceResponse((TopicProduceResponse("t", tuple(answers)),)))

        for topic in request.topic_data:
            for data in topic.partition_data:
                self._append(data.index, data.records, one)

    def _append(self, index: int, records: bytes, tell: Callable[[PartitionProduceResponse], None]) -> None:
        log = self.logs[index]
        batches = []
        position = 0
        while position < len(records):
            header = read_header(records, position)
            content = records[position : position + header.length]
            position += header.length
            batches.append((content, header))
            values = decode_columns(content, 0, read_header(content)).values()
            if header.length > self.trouble.max_message_bytes:
                return tell(PartitionProduceResponse(index, ErrorCode.MESSAGE_TOO_LARGE))
            if any((value or b"").startswith(WRONG) for value in values):
                return tell(PartitionProduceResponse(index, ErrorCode.INVALID_RECORD))
        try:
            results = append_once_each(log.producers, batches, 0, log.write)
        except ProducerStateError as error:
            return tell(PartitionProduceResponse(index, CODES[type(error)], error_message=str(error)))
        bases = tuple(result.base_offset for result in results)

        def on_durable(succeeded: bool) -> None:
            if succeeded:
                tell(PartitionProduceResponse(index, ErrorCode.NONE, bases[0], batch_offsets=bases))
            else:
                tell(PartitionProduceResponse(index, ErrorCode.KAFKA_STORAGE_ERROR))

        end = max(result.last_offset for result in results) + 1
        if end <= log.stored:
            return on_durable(True)
        if self._random.random() < self.trouble.write_slow:
            tell(PartitionProduceResponse(index, ErrorCode.REQUEST_TIMED_OUT))
            log.waiting.append(lambda succeeded: None)
        else:
            log.waiting.append(on_durable)
        if len(log.waiting) == 1:
            fails = self._random.random() < self.trouble.write_fails
            self._loop.call_later(self._random.uniform(0.0005, 0.003), log.commit, not fails)
        return None

    def forget(self) -> None:
        """Producers are forgotten, a retention after they were heard of: nothing of that time is on its way any more.

        Not those that have just begun: who repeats a batch that begins with 0 then cannot be told from a new producer.
        """
        self.incarnation += 1
        for log in self.logs:
            log.commit(succeeds=False)
            log.producers = Producers(
                (producer_id, state) for producer_id, state in log.producers if state.batches[0].first_sequence == 0
            )


class ModelConnection:
    """The network between the two."""

    def __init__(self, cluster: ModelCluster) -> None:
        self._cluster = cluster

    async def request_frame(
        self, name: str, frame: Frame, response_type: type[ProduceResponse], *, timeout_s: float
    ) -> ProduceResponse:
        try:
            async with asyncio.timeout(timeout_s):
                return await self._send(frame)
        except TimeoutError as error:
            raise self._silent() from error

    def begin(
        self,
        name: str,
        frame: Frame,
        response_type: type[ProduceResponse],
        tell: Callable[[ProduceResponse | Exception], None],
        *,
        timeout_s: float,
    ) -> asyncio.Future[ProduceResponse]:
        answer = self._send(frame)

        def expired() -> None:
            if answer.cancel():
                tell(self._silent())

        timer = self._cluster.loop.call_later(timeout_s, expired)

        def told(answer: asyncio.Future[ProduceResponse]) -> None:
            timer.cancel()
            if not answer.cancelled():
                tell(answer.result())

        answer.add_done_callback(told)
        return answer

    def _silent(self) -> CohortError:
        return ConnectionLostError("silent") if self._cluster.happens(0.5) else RequestTimedOutError("no answer")

    def _send(self, frame: Frame) -> asyncio.Future[ProduceResponse]:
        cluster = self._cluster
        happens, random, trouble, loop = cluster.happens, cluster.random, cluster.daemon.trouble, cluster.loop
        pieces = frame(1, "p")
        data = pieces if isinstance(pieces, bytes) else b"".join(pieces)
        future: asyncio.Future[ProduceResponse] = loop.create_future()
        incarnation = cluster.daemon.incarnation
        answered = not happens(trouble.answer_lost)
        moves = cluster.moves

        def answer(response: ProduceResponse) -> None:
            if not future.done():
                future.set_result(response)

        def arrive(tell: Callable[[ProduceResponse], None]) -> None:
            if cluster.daemon.incarnation == incarnation:
                cluster.daemon.produce(data, tell)
                if happens(trouble.twice):
                    cluster.daemon.produce(data, lambda response: None)

        def delay_s() -> float:
            return random.uniform(0, trouble.late_s) if happens(trouble.late) else random.uniform(0.0005, 0.002)

        def reply(response: ProduceResponse) -> None:
            if cluster.moves != moves and happens(0.5):  # the leader was lost before the others had what it appended
                response = not_led(response)
            if answered:
                loop.call_later(delay_s(), answer, response)

        if not happens(trouble.never):
            loop.call_later(delay_s(), arrive, reply)
        return future


def not_led(response: ProduceResponse) -> ProduceResponse:
    """The same answer by a node that leads none of the partitions any more."""
    (topic,) = response.responses
    code = ErrorCode.NOT_LEADER_OR_FOLLOWER
    refused = tuple(PartitionProduceResponse(each.index, code) for each in topic.partition_responses)
    return ProduceResponse((TopicProduceResponse(topic.name, refused),))


class ModelCluster:
    """What the sender needs of a cluster."""

    client_id = "p"

    def __init__(self, loop: SimLoop, random: Random, daemon: ModelDaemon) -> None:
        self.loop = loop
        self.random = random
        self.daemon = daemon
        self.backoff = Backoff(random)
        self.next_id = 100
        self.moves = 0
        self.topology = self._picture()

    def _picture(self) -> Topology:
        leader = self.moves % 2
        partitions = tuple(
            PartitionMetadata(0, index, leader, self.moves, (0, 1), (0, 1)) for index in range(PARTITIONS)
        )
        topic = TopicMetadata(0, "t", "id", False, partitions)
        return Topology(1 + self.moves, "c", {0: ("d", 1), 1: ("e", 1)}, {"t": topic}, frozenset({"t"}))

    def move(self) -> None:
        """The other node leads all partitions, with the same log."""
        self.moves += 1
        self.topology = self._picture()

    def is_silent(self, address: object) -> bool:
        return self.happens(0.5)

    def max_request_bytes(self, api_key: int, address: object) -> int:
        return 0

    def happens(self, chance: float) -> bool:
        return self.random.random() < chance

    def open_connection(self, address: object) -> ModelConnection | None:
        return ModelConnection(self) if self.happens(0.7) else None

    async def connection_to(self, address: object) -> ModelConnection:
        await asyncio.sleep(0)
        if self.happens(self.daemon.trouble.never / 4):
            raise ConnectionLostError("refused")
        return ModelConnection(self)

    async def call(self, request: object, response_type: object, *, deadline: object) -> InitProducerIdResponse:
        await asyncio.sleep(0.01)
        if self.happens(self.daemon.trouble.never):
            raise ConnectionLostError("refused")
        self.next_id += 1
        return InitProducerIdResponse(ErrorCode.NONE, self.next_id, 0)

    async def refresh(self, deadline: object) -> None:
        await asyncio.sleep(0.001)


class World:
    """One history."""

    def __init__(self, seed: int, trouble: Trouble, records: int) -> None:
        self.random = Random(seed)
        self.loop = SimLoop(Random(seed + 1))  # type: ignore[abstract]
        self.trouble = trouble
        self.daemon = ModelDaemon(self.loop, self.random, trouble)
        self.cluster = ModelCluster(self.loop, self.random, self.daemon)
        self.records = records
        self.identity = ProducerIdentity()
        self.queues = PartitionQueues[ProducerBatch](BATCH_OVERHEAD_BYTES + 80, trouble.linger_s, self.identity)
        self.pool = BufferPool(10**9)
        self.sent: list[list[tuple[bytes, asyncio.Future[RecordMetadata]]]] = [[] for _ in range(PARTITIONS)]

    def run(self) -> None:
        self.loop.run_until_complete(self._run())
        assert not self.loop.failures, self.loop.failures
        self.check()

    async def _run(self) -> None:
        trouble = self.trouble
        settings = SenderSettings(
            -1, None, trouble.max_in_flight, trouble.max_request_bytes, trouble.retries, 0.0,
            trouble.request_timeout_s, trouble.delivery_timeout_s,
        )  # fmt: skip
        cluster: Any = self.cluster
        sender = Sender(cluster, self.queues, self.pool, settings, self.identity)
        flushes = []
        for number in range(self.records):
            self._send(number, sender)
            if self.random.random() < 0.15:
                await asyncio.sleep(self.random.choice((0.0, 0.001, 0.01, 0.3)))
            if self.random.random() < 0.03:
                flushes.append(asyncio.ensure_future(self._flush(sender)))
            if self.random.random() < trouble.forgets:
                self.daemon.forget()
            if self.random.random() < trouble.fenced and self.identity.producer_id is not None:
                self._fence()
            if self.random.random() < trouble.moves:
                self.cluster.move()
                sender.leaders_changed()
            if trouble.shrinks and self.random.random() < 0.05:
                size = self.random.choice((150, 220, 10**6))
                self.daemon.trouble = replace(self.daemon.trouble, max_message_bytes=size)
        self.daemon.trouble = Trouble(max_message_bytes=self.daemon.trouble.max_message_bytes)
        bound = self.loop.time() + 2 * trouble.delivery_timeout_s + 10
        await sender.flush(None)
        await asyncio.gather(*flushes)
        assert self.loop.time() < bound
        await asyncio.sleep(2 * trouble.late_s)  # what is still on its way arrives
        assert all(future.done() for entries in self.sent for _, future in entries)
        assert self.pool.used == 0
        await sender.close()

    def _send(self, number: int, sender: Sender) -> None:
        index = self.random.randrange(PARTITIONS)
        value = (WRONG if self.random.random() < self.trouble.wrong else b"") + b"%d" % number
        size = RECORD_OVERHEAD_BYTES + len(value)
        assert self.pool.try_reserve(size + RECORD_MEMORY_BYTES)
        future: asyncio.Future[RecordMetadata] = self.loop.create_future()
        queue = self.queues.queue(TopicPartition("t", index))
        batch = open_batch(self.queues, queue, size, self.loop.time())
        batch.append(None, value, 0, (), size, future)
        sender.wake()
        self.sent[index].append((value, future))

    async def _flush(self, sender: Sender) -> None:
        before = [future for entries in self.sent for _, future in entries]
        await sender.flush(None)
        assert all(future.done() for future in before), "a flush returned before a record that was queued then"

    def _fence(self) -> None:
        """Somebody else writes under this producer's id."""
        for log in self.daemon.logs:
            known = log.producers.get(self.identity.producer_id or 0)
            if known is not None and log.stored == len(log.values):
                states = dict(log.producers)
                states[self.identity.producer_id or 0] = known._replace(
                    epoch=known.epoch + 1, batches=known.batches[-1:]
                )
                log.producers = Producers(states.items())

    def failures(self) -> list[BaseException]:
        """What became of the records that were not acknowledged."""
        return [error for entries in self.sent for _, future in entries if (error := future.exception()) is not None]

    def check(self) -> None:
        for log, sent in zip(self.daemon.logs, self.sent, strict=True):
            assert len(set(log.values)) == len(log.values), "a record is in the log twice"
            numbers = [int(value) for value in log.values]
            assert numbers == sorted(numbers), "records are not in the order in which they were sent"
            for value, future in sent:
                error = future.exception()
                if error is None:
                    offset = future.result().offset
                    assert log.values[offset] == value, "an acknowledged record is not where it should be"
                elif "may or may not" not in str(error):
                    assert value not in log.values, f"a record was refused and is in the log: {error}"
                    assert isinstance(error, CohortError)
