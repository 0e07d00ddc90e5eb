"""The produce handler over real logs and a real socket, beside a coordinator that answers when a test says so."""

from __future__ import annotations

import asyncio
import struct
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import replace
from itertools import count
from pathlib import Path

from coordinator.config import Settings
from coordinator.filesystem.executor import Disk
from coordinator.filesystem.files import FileStorage
from coordinator.log.partition import PartitionLog
from coordinator.logs.log_manager import LogManager
from coordinator.metadata.catalog import Catalog
from coordinator.metadata.local import LocalMetadataStore
from coordinator.nodes.membership import Standalone
from coordinator.runtime.admission import Admission
from coordinator.runtime.held_commits import HeldCommits
from coordinator.runtime.participants import ParticipantKey
from coordinator.server.handlers.led_partitions import LedPartitions
from coordinator.server.handlers.produce import ProduceHandler
from coordinator.server.listener import ConnectionLimits, Listener, native_port
from protocol.codec import decode_message
from protocol.errors import ErrorCode
from protocol.framing import decode_response
from protocol.messages.records import PartitionProduceResponse, ProduceResponse
from protocol.messages.transactions import AddPartitionsToTxnRequest, AddPartitionsToTxnResponse
from protocol.produce_frame import encode_produce_request
from protocol.record_batch import HEADER_BYTES, Attributes, encode_batch, read_header

LIMITS = ConnectionLimits(
    max_connections=10, max_frame_bytes=1 << 20, max_in_flight=100, max_request_memory_bytes=1 << 20,
    frame_timeout_ms=10_000, max_idle_ms=10_000,
)  # fmt: skip
GRANTED = AddPartitionsToTxnResponse(ErrorCode.NONE)
ID, PRODUCER = "billing", 7


def batch(
    sequence: int,
    *values: bytes,
    epoch: int = 0,
    producer_id: int = PRODUCER,
    attributes: Attributes = Attributes.TRANSACTIONAL,
) -> bytes:
    """A batch of a producer with further attributes, by default one of a transaction."""
    encoded = encode_batch(
        values or (b"v",),
        timestamps_ms=[1] * max(1, len(values)),
        producer_id=producer_id,
        producer_epoch=epoch if producer_id >= 0 else -1,
        base_sequence=sequence if producer_id >= 0 else -1,
    )
    header = read_header(encoded)
    return replace(header, attributes=header.attributes | attributes).pack() + encoded[HEADER_BYTES:]


class Coordinators:
    """Notes what it is asked, and answers at once while ``answer`` is set."""

    def __init__(self) -> None:
        self.answer: AddPartitionsToTxnResponse | None = GRANTED
        self.asked: list[AddPartitionsToTxnRequest] = []
        self.done: list[Callable[[AddPartitionsToTxnResponse], None]] = []

    def add(self, request: AddPartitionsToTxnRequest, done: Callable[[AddPartitionsToTxnResponse], None]) -> None:
        self.asked.append(request)
        if self.answer is not None:
            done(self.answer)
        else:
            self.done.append(done)

    def answer_all(self, answer: AddPartitionsToTxnResponse = GRANTED) -> None:
        done, self.done = self.done, []
        for each in done:
            each(answer)

    async def until_asked(self, times: int) -> None:
        async with asyncio.timeout(30):
            while len(self.asked) < times:
                await asyncio.sleep(0)


class RawProducer:
    """A connection on which any number of Produce requests may be under way."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader, self._writer = reader, writer
        self._numbers = count()
        self.answers: dict[int, list[PartitionProduceResponse]] = {}
        """By the number of the request, in the order in which they came."""

    def send(
        self,
        *partitions: tuple[int, bytes],
        topic: str = "t",
        transactional_id: str | None = ID,
        acks: int = -1,
        timeout_ms: int = 10_000,
    ) -> int:
        """Sends a request; returns its number."""
        number = next(self._numbers)
        pieces = [(index, [records]) for index, records in partitions]
        frame = encode_produce_request(number, "c", acks, timeout_ms, [(topic, pieces)], transactional_id)
        self._writer.writelines(frame)
        return number

    async def answer(self, number: int) -> list[PartitionProduceResponse]:
        """The answer to a request; answers to others that come before are kept."""
        async with asyncio.timeout(30):
            while number not in self.answers:
                (length,) = struct.unpack(">I", await self._reader.readexactly(4))
                frame = decode_response(await self._reader.readexactly(length))
                response = decode_message(ProduceResponse, frame.body)
                self.answers[frame.correlation_id] = [
                    entry for found in response.responses for entry in found.partition_responses
                ]
        return self.answers[number]

    async def codes(self, number: int) -> list[int]:
        """The error codes of an answer."""
        return [entry.error_code for entry in await self.answer(number)]

    async def close(self) -> None:
        self._writer.close()
        await self._writer.wait_closed()

    def abort(self) -> None:
        """Hangs up."""
        self._writer.transport.abort()


class ProduceNode:
    """A node with a topic ``t`` of three partitions that does nothing but Produce."""

    def __init__(self, catalog: Catalog, logs: LogManager, listener: Listener, coordinators: Coordinators) -> None:
        self.catalog, self.logs, self.listener, self.coordinators = catalog, logs, listener, coordinators
        self.admission: Admission
        self.address = ("", 0)

    def log(self, index: int = 0) -> PartitionLog:
        found = self.logs.get("t", index)
        assert found is not None
        return found

    def key(self, index: int = 0) -> ParticipantKey:
        return ("t", self.catalog.topic("t").topic_id, index)

    async def connect(self) -> RawProducer:
        return RawProducer(*await asyncio.open_connection(*self.address))

    async def end(self, epoch: int, *, committed: bool, index: int = 0, producer_id: int = PRODUCER) -> None:
        """What a coordinator does in a partition once it has decided."""
        ends = [(producer_id, epoch, committed)]
        self.admission.marker(self.key(index), ends)
        on_disk = asyncio.get_running_loop().create_future()
        self.log(index).when_durable(self.log(index).end_transactions(ends, 0, 1), on_disk.set_result)
        assert await on_disk is None

    async def until_idle(self) -> None:
        """Until no request holds memory."""
        async with asyncio.timeout(30):
            while self.listener.budget.used:
                await asyncio.sleep(0)


@asynccontextmanager
async def produce_node(folder: Path) -> AsyncIterator[ProduceNode]:
    """Everything that Produce needs, and no more."""
    disk = Disk(FileStorage(str(folder)), threads=1)
    store = await LocalMetadataStore.open(disk, lambda: "cluster", lambda reason: None)
    ids = count()
    catalog = Catalog(
        store, 0, lambda: f"id-{next(ids)}", max_partitions=9, max_partitions_per_topic=9,
        config_defaults=Settings().topic_defaults,
    )  # fmt: skip
    logs = LogManager(disk, catalog, lambda topic: catalog.config(topic).log_config("ack"), lambda reason: None)
    topic = catalog.draft("t", 3, {})
    await logs.create(topic, range(3))
    await catalog.commit(topic)
    coordinators = Coordinators()
    admission = Admission(coordinators, asyncio.get_running_loop().call_later)
    commits = HeldCommits(lambda name, index: logs.logs.get((name, index)), asyncio.get_running_loop().call_later)
    led = LedPartitions(catalog, logs, Standalone(0))
    listener = Listener(LIMITS)
    handle = ProduceHandler(catalog, led, admission, commits, lambda: 1).handle
    node = ProduceNode(catalog, logs, listener, coordinators)
    node.admission = admission
    node.address = await listener.start(native_port(handle, LIMITS.max_frame_bytes), "127.0.0.1", 0)
    try:
        yield node
    finally:
        await listener.close(1.0)
        await logs.close()
        disk.close()
