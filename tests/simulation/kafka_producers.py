"""Producers of Kafka's protocol: idempotent, with several batches of a partition under way."""

from __future__ import annotations

import asyncio
import gzip
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Final

from coordinator.kafka.refused_batches import FOR_NOW
from protocol.errors import ErrorCode
from protocol.kafka.batch import KafkaBatchHeader
from protocol.kafka.messages.init_producer_id_request import InitProducerIdRequest
from protocol.kafka.messages.init_producer_id_response import InitProducerIdResponse
from protocol.kafka.messages.produce_request import PartitionProduceData, ProduceRequest, TopicProduceData
from protocol.kafka.messages.produce_response import PartitionProduceResponse, ProduceResponse
from protocol.kafka.varints import packed_varint
from tests.simulation.consumers import OTHER, TOPIC
from tests.simulation.history import Acknowledged, Partition
from tests.simulation.kafka_client import AGAIN, BY_ID_SINCE, PRODUCE, KafkaClient, Trouble, name_of_code
from tests.simulation.record_facts import Failed
from tests.simulation.workloads import new_value
from tests.simulation.world import HostProcess, World

IN_FLIGHT: Final = 5
"""Batches of a partition under way: Kafka's clients have no more with numbers, and the daemon remembers as many."""
_GZIP: Final = 1
_LAST_EPOCH: Final = 2**15 - 1


def kafka_batch(
    values: Sequence[str], time_ms: int, producer: tuple[int, int, int], *, gzipped: bool = False, bits: int = 0
) -> bytes:
    """A batch of format 2 without keys; ``producer`` is id, epoch and first sequence, ``bits`` are more attributes."""
    records = b""
    for delta, value in enumerate(values):
        fields = b"\0\0", packed_varint(delta), b"\x01", packed_varint(len(value)), value.encode(), b"\0"
        content = b"".join(fields)
        records += packed_varint(len(content)) + content
    if gzipped:
        records, bits = gzip.compress(records, mtime=0), bits | _GZIP
    last = len(values) - 1
    return KafkaBatchHeader(0, 0, -1, 0, bits, last, time_ms, time_ms, *producer, last + 1).with_records(records)


@dataclass(slots=True)
class Batch:
    """Values on their way, and their bytes once they are numbered."""

    values: list[str]
    encoded: bytes = b""


@dataclass(slots=True)
class Lane:
    """What a producer has for one partition: what waits, and the next number under which identity."""

    partition: Partition
    waiting: list[Batch] = field(default_factory=list)
    identity: tuple[int, int] = (-1, -1)
    sequence: int = 0


class KafkaProducer:
    """See the module text. A batch that fails for good takes those behind it along, and a new epoch begins (KIP-360)."""

    def __init__(self, world: World, process: HostProcess) -> None:
        random = process.random
        self._world = world
        self._process = process
        self._client = KafkaClient(process, (TOPIC, OTHER), random.choice((0.8, 3.0)))
        self._delivery_s = random.choice((2.0, 12.0))
        self._gzipped = random.random() < 0.3
        self._identity = (-1, -1)
        self._lanes: dict[Partition, Lane] = {}
        self._sending: list[asyncio.Task[None]] = []
        self._stopping = False

    async def start(self) -> None:
        """Gets an id, however long it takes."""
        while self._identity[0] < 0:
            try:
                await self._client.refresh()
                address = next(iter(topic.leaders[0].address for topic in self._client.topics.values()))
                told = await self._client.ask(address, InitProducerIdRequest(None, 60_000), InitProducerIdResponse)
                self._client.told(told.error_code)
                assert told.error_code == ErrorCode.NONE, name_of_code(told.error_code)
                self._identity = told.producer_id, told.producer_epoch
            except (Trouble, StopIteration, KeyError) as error:
                self._world.history.say(self._process.name, f"gets no producer id: {error}")
                await asyncio.sleep(0.2)

    def send(self, partition: Partition, values: list[str]) -> None:
        """Queues a batch."""
        lane = self._lanes.get(partition)
        if lane is None:
            lane = self._lanes[partition] = Lane(partition)
            self._sending.append(asyncio.create_task(self._send(lane)))
        lane.waiting.append(Batch(values))

    async def stop(self) -> None:
        """Sends what is queued."""
        self._stopping = True
        await asyncio.gather(*self._sending)
        self._client.close()

    async def _send(self, lane: Lane) -> None:
        while lane.waiting or not self._stopping:
            if not lane.waiting:
                await asyncio.sleep(0.02)
                continue
            window, lane.waiting = lane.waiting[:IN_FLIGHT], lane.waiting[IN_FLIGHT:]
            self._number(lane, window)
            await self._deliver(lane, window)

    def _number(self, lane: Lane, window: list[Batch]) -> None:
        if lane.identity != self._identity:
            lane.identity, lane.sequence = self._identity, 0
        for batch in window:
            producer = (*lane.identity, lane.sequence)
            batch.encoded = kafka_batch(batch.values, self._world.wall_ms(), producer, gzipped=self._gzipped)
            lane.sequence += len(batch.values)

    async def _deliver(self, lane: Lane, window: list[Batch]) -> None:
        """Sends a window until all of it is acknowledged, or its time is over."""
        end_s = self._world.loop.time() + self._delivery_s
        left = window
        while left:
            try:
                codes = await self._attempt(lane.partition, left)
            except Trouble as error:
                self._world.history.say(self._process.name, f"sends {lane.partition} again: {error}")
                codes = [ErrorCode.REQUEST_TIMED_OUT] * len(left)
            for number, code in enumerate(codes):
                # Behind one whose answer is lost it is out of order until that one is there. Behind one that was refused for
                # now it would have librdkafka begin a new epoch, and send again under that what is stored under the old one.
                missing = any(earlier and earlier not in FOR_NOW for earlier in codes[:number])
                follows = code == ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER and missing
                if code not in (ErrorCode.NONE, *AGAIN) and not follows:
                    self._fail(lane, left[number:], name_of_code(code))
                    return
            left = [batch for batch, code in zip(left, codes, strict=True) if code]
            if left and self._world.loop.time() >= end_s:
                self._fail(lane, left, f"not acknowledged in {self._delivery_s} s")
                return
            if left:
                self._world.history.retried[self._process.name] = None
                await asyncio.sleep(0.05 + 0.1 * self._process.random.random())

    def _fail(self, lane: Lane, batches: list[Batch], error: str) -> None:
        """What became of them is not known; nothing of them may come behind what is sent next, so the epoch rises."""
        history, records = self._world.history, sum(len(batch.values) for batch in batches)
        failed = Failed(self._process.name, lane.partition, records, self._world.loop.time(), error)
        history.records.failed.append(failed)
        history.say(self._process.name, f"gives up {records} records of {lane.partition}: {error}")
        if lane.identity == self._identity:
            number, epoch = self._identity
            assert epoch < _LAST_EPOCH, "a history is too short for so many epochs"
            self._identity = number, epoch + 1

    async def _attempt(self, partition: Partition, batches: list[Batch]) -> list[int]:
        """One request for each batch, one behind the other; the error of each. Raises ``Trouble`` when none was sent."""
        answers = await produced(self._client, partition, [batch.encoded for batch in batches])
        return [
            ErrorCode.REQUEST_TIMED_OUT if told is None else self._outcome(partition, batch, told)
            for batch, told in zip(batches, answers, strict=True)
        ]

    def _outcome(self, partition: Partition, batch: Batch, told: PartitionProduceResponse) -> int:
        if told.error_code == ErrorCode.DUPLICATE_SEQUENCE_NUMBER:
            return ErrorCode.NONE  # it is there, but nobody knows where any more
        if told.error_code == ErrorCode.NONE:
            now_s = self._world.loop.time()
            for number, value in enumerate(batch.values):
                fact = Acknowledged(partition, told.base_offset + number, now_s)
                self._world.history.acknowledged[value] = fact
        return told.error_code


async def produced(
    client: KafkaClient, partition: Partition, batches: Sequence[bytes], transactional_id: str | None = None
) -> list[PartitionProduceResponse | None]:
    """One request for each batch, one behind the other; the answer to each, None for one that has not come.

    Raises ``Trouble`` when none was sent.
    """
    topic, index = partition
    leader = await client.leader(partition)
    topic_id = client.topics[topic].topic_id
    by_id = client.versions[PRODUCE] >= BY_ID_SINCE
    connection = await client.connection(leader.address)
    answers = []
    for batch in batches:
        data = [PartitionProduceData(index, batch)]
        named = TopicProduceData("" if by_id else topic, topic_id if by_id else bytes(16), data)
        request = ProduceRequest(transactional_id, -1, int(client.timeout_s * 1000), [named])
        answers.append(connection.send(request, ProduceResponse))
    told: list[PartitionProduceResponse | None] = []
    for answer in answers:
        try:
            (of_topic,) = (await client.waited(connection, answer)).responses
            told.append(of_topic.partition_responses[0])
        except Trouble:
            told.append(None)
    if any(each is None or each.error_code in AGAIN for each in told):
        client.topics.clear()
    return told


async def kafka_produce(world: World, process: HostProcess) -> None:
    """Sends batches of its values at its own pace, through every fault, and goes on to the end of its list."""
    random = process.random
    world.history.records.numbered[process.name] = None
    producer = KafkaProducer(world, process)
    await producer.start()
    pause_s = 2 * world.plan.fault_s / world.plan.records
    number = 0
    while number < world.plan.records and not (number and world.calm.is_set()):
        topic = TOPIC if random.random() < 0.8 else OTHER
        partition = (topic, int(random.random() * (world.plan.partitions if topic == TOPIC else 1)))
        values = [new_value(world, process, number + i, partition) for i in range(1 + int(random.random() * 4))]
        number += len(values)
        producer.send(partition, values)
        if random.random() < 0.4:
            await asyncio.sleep(2 * pause_s * random.random())
    await producer.stop()
