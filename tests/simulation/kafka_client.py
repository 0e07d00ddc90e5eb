"""A client of Kafka's protocol on the simulated network: connections, versions, who leads and who coordinates.

It is small, and does what Kafka's own clients do where the daemon can tell: requests of a connection are sent one behind the
other and answered in that order, a request that is not answered in time ends its connection, and leaders, coordinators and
ids of topics are remembered until an answer says that they are others. aiokafka would run on this loop too, but it goes by
the clock and the random numbers of the machine and by the order of sets of tasks, so no seed would replay.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Final, NamedTuple, TypeVar

from coordinator.kafka.codes import KafkaCode
from protocol.errors import ErrorCode
from protocol.framing import LENGTH_BYTES
from protocol.kafka.decoding import decode
from protocol.kafka.encoding import encode
from protocol.kafka.headers import RequestHeader, decode_response_header, encode_request_header
from protocol.kafka.messages.api_versions_request import ApiVersionsRequest
from protocol.kafka.messages.api_versions_response import ApiVersionsResponse
from protocol.kafka.messages.find_coordinator_request import FindCoordinatorRequest
from protocol.kafka.messages.find_coordinator_response import FindCoordinatorResponse
from protocol.kafka.messages.metadata_request import MetadataRequest, MetadataRequestTopic
from protocol.kafka.messages.metadata_response import MetadataResponse
from protocol.kafka.schema import Message
from tests.simulation.history import Partition
from tests.simulation.world import KAFKA_PORT, HostProcess

Answer = TypeVar("Answer", bound=Message)
Address = tuple[str, int]

PRODUCE, FETCH, LIST_OFFSETS, METADATA, OFFSET_COMMIT, OFFSET_FETCH, FIND_COORDINATOR = 0, 1, 2, 3, 8, 9, 10
JOIN_GROUP, HEARTBEAT, LEAVE_GROUP, SYNC_GROUP, API_VERSIONS, INIT_PRODUCER_ID = 11, 12, 13, 14, 18, 22
ADD_PARTITIONS, ADD_OFFSETS, END_TXN, TXN_OFFSET_COMMIT = 24, 25, 26, 28

OLD: Final[Mapping[int, int]] = {
    PRODUCE: 7, FETCH: 10, LIST_OFFSETS: 5, METADATA: 7, OFFSET_COMMIT: 6, OFFSET_FETCH: 5, FIND_COORDINATOR: 2,
    JOIN_GROUP: 2, HEARTBEAT: 2, LEAVE_GROUP: 2, SYNC_GROUP: 2, API_VERSIONS: 2, INIT_PRODUCER_ID: 1,
    ADD_PARTITIONS: 1, ADD_OFFSETS: 1, END_TXN: 1, TXN_OFFSET_COMMIT: 2,
}  # fmt: skip
"""What clients of Kafka 2.1 send: topics by name, no instance ids, nothing of KIP-394."""
NEW: Final[Mapping[int, int]] = {
    PRODUCE: 13, FETCH: 17, LIST_OFFSETS: 9, METADATA: 12, OFFSET_COMMIT: 9, OFFSET_FETCH: 9, FIND_COORDINATOR: 6,
    JOIN_GROUP: 9, HEARTBEAT: 4, LEAVE_GROUP: 5, SYNC_GROUP: 5, API_VERSIONS: 4, INIT_PRODUCER_ID: 5,
    END_TXN: 5, TXN_OFFSET_COMMIT: 5,
}  # fmt: skip
"""What clients of Kafka 4 send: topics by id where they can be, and an epoch for each transaction."""
MIDDLE: Final[Mapping[int, int]] = {
    **NEW, PRODUCE: 11, FETCH: 12, INIT_PRODUCER_ID: 4,
    ADD_PARTITIONS: 3, ADD_OFFSETS: 3, END_TXN: 4, TXN_OFFSET_COMMIT: 4,
}  # fmt: skip
"""What clients of Kafka 3 send: one epoch for all transactions, another one on demand (KIP-360), and members by name in
the offsets of transactions (KIP-447)."""
BY_ID_SINCE: Final = 13
"""The versions of Produce and Fetch that name topics by id (KIP-516)."""
INSTANCES_SINCE: Final = 5
"""The version of JoinGroup with instance ids (KIP-345)."""

AGAIN: Final = frozenset(
    {
        *(ErrorCode.NOT_LEADER_OR_FOLLOWER, ErrorCode.LEADER_NOT_AVAILABLE, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION),
        *(ErrorCode.REQUEST_TIMED_OUT, ErrorCode.NOT_ENOUGH_REPLICAS, ErrorCode.NOT_ENOUGH_REPLICAS_AFTER_APPEND),
        *(ErrorCode.KAFKA_STORAGE_ERROR, ErrorCode.FENCED_LEADER_EPOCH, ErrorCode.UNKNOWN_LEADER_EPOCH),
        *(ErrorCode.OFFSET_NOT_AVAILABLE, ErrorCode.NOT_COORDINATOR, ErrorCode.COORDINATOR_NOT_AVAILABLE),
        *(ErrorCode.COORDINATOR_LOAD_IN_PROGRESS, KafkaCode.UNKNOWN_TOPIC_ID, KafkaCode.INCONSISTENT_TOPIC_ID),
    }
)
"""Errors after which a client asks who leads or coordinates, and tries again."""


class Trouble(Exception):
    """Something that a client tries again: a connection that broke, silence, an error that passes."""


class KafkaConnection(asyncio.Protocol):
    """One connection. Requests may be under way together; they are answered in order."""

    def __init__(self, client_id: Callable[[], str], versions: Mapping[int, int]) -> None:
        self.lost = False
        self._client_id = client_id
        self._versions = versions
        self._transport: asyncio.Transport | None = None
        self._received = bytearray()
        self._waiting: deque[tuple[int, int, int, type[Message], asyncio.Future[Message]]] = deque()
        self._correlation_id = 0

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """See asyncio."""
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport

    def data_received(self, data: bytes) -> None:
        """See asyncio."""
        self._received += data
        while len(self._received) >= LENGTH_BYTES:
            end = LENGTH_BYTES + int.from_bytes(self._received[:LENGTH_BYTES])
            if len(self._received) < end:
                return
            payload = bytes(self._received[LENGTH_BYTES:end])
            del self._received[:end]
            correlation_id, key, version, kind, answer = self._waiting.popleft()
            told, at = decode_response_header(key, version, payload)
            assert told == correlation_id, (
                f"request {correlation_id} was answered with {told}: answers are out of order"
            )
            if not answer.done():
                answer.set_result(decode(kind, version, payload, at))

    def connection_lost(self, error: Exception | None) -> None:
        """See asyncio."""
        self.lost = True
        waiting, self._waiting = self._waiting, deque()
        for *_, answer in waiting:
            if not answer.done():
                answer.set_exception(Trouble(f"the connection is gone: {error}"))

    def send(self, request: Message, kind: type[Answer]) -> asyncio.Future[Answer]:
        """Sends a request; its answer comes, or ``Trouble``."""
        answer: asyncio.Future[Answer] = asyncio.get_running_loop().create_future()
        if self.lost or self._transport is None:
            answer.set_exception(Trouble("the connection is gone"))
            return answer
        key, self._correlation_id = request.API_KEY, self._correlation_id + 1
        version = self._versions[key]
        header = encode_request_header(RequestHeader(key, version, self._correlation_id, self._client_id()))
        payload = header + b"".join(encode(request, version))
        self._waiting.append((self._correlation_id, key, version, kind, answer))  # type: ignore[arg-type]
        self._transport.write(len(payload).to_bytes(LENGTH_BYTES) + payload)
        return answer

    def break_off(self) -> None:
        """Ends the connection at once; what is queued is not sent any more."""
        if self._transport is not None and not self.lost:
            self._transport.abort()
            self.connection_lost(None)


class Broker(NamedTuple):
    """Where a partition is led."""

    address: Address
    epoch: int


@dataclass(slots=True)
class Topic:
    """What a client knows of a topic."""

    topic_id: bytes
    partitions: int
    leaders: dict[int, Broker]


class KafkaClient:
    """What producers and members of one program share. ``timeout_s`` is how long it waits for an answer."""

    def __init__(
        self,
        process: HostProcess,
        topics: tuple[str, ...],
        timeout_s: float,
        versions: Mapping[int, int] | None = None,
    ) -> None:
        self.process = process
        self.client_id = process.host
        """What requests are sent under from now on."""
        self.versions = process.random.choice((OLD, NEW)) if versions is None else versions
        self.timeout_s = timeout_s
        self.topics: dict[str, Topic] = {}
        self._wanted = topics
        self._brokers: dict[int, Address] = {}
        self._connections: dict[tuple[Address, str], KafkaConnection] = {}
        self._coordinators: dict[tuple[int, str], Address] = {}

    def close(self) -> None:
        """Ends all connections."""
        for connection in self._connections.values():
            connection.break_off()
        self._connections.clear()

    # Requests

    async def connection(self, address: Address, purpose: str = "") -> KafkaConnection:
        """The connection to a broker, a new one if need be. Raises ``Trouble``."""
        known = self._connections.get((address, purpose))
        if known is not None and not known.lost:
            return known
        made = KafkaConnection(lambda: self.client_id, self.versions)
        loop = asyncio.get_running_loop()
        try:
            async with asyncio.timeout(self.timeout_s):
                await loop.create_connection(lambda: made, *address)
        except (OSError, TimeoutError) as error:
            self._forget()
            raise Trouble(f"no connection to {address}: {error!r}") from error
        self._connections[address, purpose] = made
        await self.answered(made, ApiVersionsRequest("sim", "1"), ApiVersionsResponse)
        return made

    async def ask(self, address: Address, request: Message, kind: type[Answer], purpose: str = "") -> Answer:
        """What a broker answers. Raises ``Trouble``."""
        return await self.answered(await self.connection(address, purpose), request, kind)

    async def answered(
        self, connection: KafkaConnection, request: Message, kind: type[Answer], more_s: float = 0.0
    ) -> Answer:
        """The answer of a connection that stands; silence ends it. Raises ``Trouble``."""
        return await self.waited(connection, connection.send(request, kind), more_s)

    async def waited(self, connection: KafkaConnection, answer: asyncio.Future[Answer], more_s: float = 0.0) -> Answer:
        """The same for a request that was sent."""
        try:
            async with asyncio.timeout(self.timeout_s + more_s):
                return await answer
        except TimeoutError:
            connection.break_off()
            self._forget()
            raise Trouble("there is no answer in time") from None
        except Trouble:
            self._forget()
            raise

    def _forget(self) -> None:
        """Who did not answer may be gone: others are asked who leads and coordinates."""
        self.topics.clear()
        self._coordinators.clear()

    # Who leads, and who coordinates

    async def refresh(self) -> None:
        """Asks a broker what there is. Raises ``Trouble``."""
        bootstrap = [(node.name, KAFKA_PORT) for node in self.process.world.nodes]
        address = self.process.random.choice([*self._brokers.values(), *bootstrap])
        named = [MetadataRequestTopic(name=topic) for topic in self._wanted]
        told = await self.ask(address, MetadataRequest(named, allow_auto_topic_creation=False), MetadataResponse)
        self._brokers = {each.node_id: (each.host, each.port) for each in told.brokers}
        self.topics = {
            topic.name: Topic(
                topic.topic_id,
                len(topic.partitions),
                {
                    each.partition_index: Broker(self._brokers[each.leader_id], each.leader_epoch)
                    for each in topic.partitions
                    if each.leader_id in self._brokers
                },
            )
            for topic in told.topics
            if topic.name is not None and topic.error_code == ErrorCode.NONE
        }

    async def leader(self, partition: Partition) -> Broker:
        """Who leads a partition. Raises ``Trouble`` when nobody does."""
        topic, index = partition
        if topic not in self.topics or index not in self.topics[topic].leaders:
            await self.refresh()
        if topic not in self.topics or index not in self.topics[topic].leaders:
            await asyncio.sleep(0.1)
            raise Trouble(f"nobody leads {topic}-{index}")
        return self.topics[topic].leaders[index]

    def name_of(self, topic_id: bytes) -> str:
        """The topic with an id. Raises ``Trouble`` for one that is not known any more."""
        for name, topic in self.topics.items():
            if topic.topic_id == topic_id:
                return name
        raise Trouble(f"no topic has the id {topic_id.hex()}")

    def told(self, code: int) -> None:
        """Raises ``Trouble`` for an error that passes, once what is known was given up."""
        if code in AGAIN:
            self._forget()
            raise Trouble(_name(code))

    async def coordinator(self, key: str, kind: int = 0) -> Address:
        """Who coordinates a group (0) or a transactional id (1). Raises ``Trouble``."""
        if (kind, key) not in self._coordinators:
            if not self._brokers:
                await self.refresh()
            address = self.process.random.choice(list(self._brokers.values()))
            if self.versions is OLD:
                told = await self.ask(address, FindCoordinatorRequest(key, kind), FindCoordinatorResponse)
                code, found = told.error_code, (told.host, told.port)
            else:
                asked = FindCoordinatorRequest(key_type=kind, coordinator_keys=[key])
                (one,) = (await self.ask(address, asked, FindCoordinatorResponse)).coordinators
                code, found = one.error_code, (one.host, one.port)
            self.told(code)
            assert code == ErrorCode.NONE, f"the coordinator of {key} is not found: {_name(code)}"
            self._coordinators[kind, key] = found
        return self._coordinators[kind, key]


def _name(code: int) -> str:
    for codes in (ErrorCode, KafkaCode):
        if code in codes._value2member_map_:
            return str(codes(code).name)
    return f"error {code}"


name_of_code = _name
